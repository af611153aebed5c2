//! Compiles every kernel that a release carries into one archive (`cargo xtask cubins`): `cubins FILE [ARCH]...`, where
//! ARCH is a name such as sm_90a; without any, all that are tested. Needs NVRTC, where the system finds libraries, but
//! neither a GPU nor a driver. Beside the program, as `mambo.kernels`, it makes NVRTC needless.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use mambo_cuda::{Arch, Compiler, write_archive};

fn write(path: &str, archs: &[Arch]) -> Result<u64, String> {
    let compiler = Compiler::new(None).map_err(|error| error.to_string())?;
    // Under another name until it is whole.
    let partial = format!("{path}.partial");
    let file = File::create(&partial).map_err(|error| format!("cannot write {partial}: {error}"))?;
    let mut file = BufWriter::new(file);
    let progress = |done: usize, all: usize| {
        if done.is_multiple_of(10) || done == all {
            eprintln!("{done} of {all} modules");
        }
    };
    write_archive(&compiler, archs, &|_| true, &mut file, &progress).map_err(|error| error.to_string())?;
    file.flush().map_err(|error| format!("cannot write {partial}: {error}"))?;
    std::fs::rename(&partial, path).map_err(|error| format!("cannot write {path}: {error}"))?;
    std::fs::metadata(path).map(|file| file.len()).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: cargo xtask cubins FILE [ARCH]...");
        return ExitCode::FAILURE;
    };
    let mut archs = Vec::new();
    for name in arguments {
        match Arch::from_name(&name) {
            Some(arch) => archs.push(arch),
            None => {
                eprintln!("`{name}` is no architecture from sm_80 on, such as sm_90a");
                return ExitCode::FAILURE;
            }
        }
    }
    if archs.is_empty() {
        archs.extend(Arch::TESTED);
    }
    match write(&path, &archs) {
        Ok(bytes) => {
            println!("{path}: {:.1} MB", bytes as f64 / 1e6);
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
