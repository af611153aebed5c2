//! Every kernel row on every hard case of its op, on the GPU of this machine. Carried to a machine with one, it runs as it
//! is: `contracts [name of an op]... [--kernels FOLDER]`.

use std::process::ExitCode;
use std::time::Instant;

use mambo_cuda::{CudaBackend, CudaError, CudaOptions};
use mambo_kernel::{Backend, OpKind};
use mambo_testkit::contract::{Report, check_all, check_ops};

fn main() -> ExitCode {
    let (mut ops, mut options) = (Vec::new(), CudaOptions::default());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernels" => options.kernel_folder = arguments.next().map(Into::into),
            name => ops.extend(OpKind::ALL.into_iter().filter(|kind| kind.name() == name)),
        }
    }
    let mut backend = match CudaBackend::new(&options) {
        Ok(backend) => backend,
        Err(reason @ (CudaError::NoGpu(_) | CudaError::Compiler(_))) => {
            println!("SKIPPED: no contract was checked on a GPU: {reason}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", backend.name());
    let begin = Instant::now();
    let report: Report = if ops.is_empty() { check_all(&mut backend) } else { check_ops(&mut backend, &ops) };
    println!("{report}in {:.1} s", begin.elapsed().as_secs_f64());
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
