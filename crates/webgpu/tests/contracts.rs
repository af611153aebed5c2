//! Every kernel row on every hard case of its op, on a device of this machine: `contracts [--device N] [--smallest]
//! [--list] [ROW]...`, where ROW is a kernel row's name, or an op's for all of its rows.

use std::process::ExitCode;
use std::time::Instant;

use mambo_kernel::{Backend, KernelRow};
use mambo_testkit::contract::check_rows;
use mambo_webgpu::{Limits, NoDevice, WebGpuBackend, WebGpuOptions};

fn main() -> ExitCode {
    let (mut names, mut lists, mut options) = (Vec::new(), false, WebGpuOptions::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--device" => {
                options.device = arguments.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            }
            "--smallest" => options.limits = Limits::Smallest,
            "--list" => lists = true,
            name => names.push(name.to_owned()),
        }
    }
    let mut backend = match WebGpuBackend::new(&options) {
        Ok(backend) => backend,
        Err(reason @ NoDevice::NoAdapter) => {
            println!("SKIPPED: no contract was checked on WebGPU: {reason}");
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
    let report = check_rows(&mut backend, &|row| names.is_empty() || is_named(row));
    println!("{report}in {:.1} s", begin.elapsed().as_secs_f64());
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
