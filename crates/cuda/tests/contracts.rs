//! Every kernel row on every hard case of its op, on the GPU of this machine. Carried to a machine with one, it runs as it
//! is: `contracts [--kernels FOLDER] [--list] [--smallest N] [ROW]...`, where ROW is a kernel row's name, or an op's for
//! all of its rows, and N limits each row to so many cases, the smallest, without long steps.
//! Without a GPU the emulated one takes its place, as Hopper and as Ampere, with threads and blocks in other orders.

mod emulated;

use std::process::ExitCode;
use std::time::Instant;

use mambo_cuda::{CompileError, CudaBackend, CudaError, CudaOptions};
use mambo_kernel::{Backend, KernelRow, OpKind};
use mambo_testkit::contract::{Amount, check_amount};

/// What stands in for a GPU: a generation that has kernels of its own, and one that has the general ones. Orders differ,
/// so that results which depend on them differ from what contracts allow. The first run is whole but for long steps of
/// `choose`; the others take the smallest so many cases of each row.
const EMULATED: [(&str, Option<usize>); 3] = [
    ("arch=90 order=forward", None),
    ("arch=80 order=backward", Some(2)),
    ("arch=90 order=7 processors=3", Some(2)),
];

/// Runs this program on emulated GPUs, one after the other.
fn on_emulated_gpus(names: &[String]) -> ExitCode {
    let folder = match emulated::build() {
        Ok(folder) => folder,
        Err(reason) => {
            println!("SKIPPED: there is no GPU, and none can be emulated: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    let mut all_good = true;
    for (settings, smallest) in EMULATED {
        println!("emulated GPU: {settings}");
        let mut command = emulated::this_program(&folder, settings);
        command.arg("--emulated").arg("--kernels").arg(emulated::kernel_folder()).args(names);
        if let Some(count) = smallest {
            command.arg("--smallest").arg(count.to_string());
        }
        all_good &= command.status().is_ok_and(|status| status.success());
    }
    let _ = std::fs::remove_dir_all(&folder);
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let (mut names, mut lists, mut options) = (Vec::new(), false, CudaOptions::default());
    let (mut smallest, mut is_emulated) = (None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernels" => options.kernel_folder = arguments.next().map(Into::into),
            "--list" => lists = true,
            "--emulated" => is_emulated = true,
            "--smallest" => smallest = arguments.next().and_then(|count| count.parse().ok()),
            name => names.push(name.to_owned()),
        }
    }
    let mut backend = match CudaBackend::new(&options) {
        Ok(backend) => backend,
        Err(CudaError::NoGpu(_) | CudaError::Compiler(_)) if !is_emulated && !lists => {
            return on_emulated_gpus(&names);
        }
        Err(reason @ (CudaError::NoGpu(_) | CudaError::Compiler(CompileError::NoCompiler))) => {
            println!("SKIPPED: no contract was checked on a GPU: {reason}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if lists {
        backend.kernels().iter().for_each(|row| println!("{}", row.name));
        return ExitCode::SUCCESS;
    }
    println!("{}", backend.name());
    let begin = Instant::now();
    let is_named = |row: &KernelRow| names.iter().any(|name| *name == row.name || name == row.op.name());
    let is_wanted = |row: &KernelRow| names.is_empty() || is_named(row);
    let amount = match smallest {
        Some(count) => Amount::smallest(count),
        // A thousand threads draw each of hundreds of tokens: minutes, one thread after the other.
        None if is_emulated => Amount { has_long_steps: |op| op != OpKind::Choose, ..Amount::ALL },
        None => Amount::ALL,
    };
    let report = check_amount(&mut backend, &is_wanted, amount);
    println!("{report}in {:.1} s", begin.elapsed().as_secs_f64());
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
