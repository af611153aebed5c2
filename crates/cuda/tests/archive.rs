//! Kernels that come with a release, on the emulated GPU: with the driver alone they run, what the archive lacks is an
//! error that says so, and an archive of another program or for a newer driver is noted.

mod emulated;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use mambo_cuda::{Arch, Compiler, CudaBackend, CudaOptions, write_archive};
use mambo_kernel::KernelRow;
use mambo_testkit::contract::{Amount, check_amount};

/// Where an archive holds the digest of its sources.
const DIGEST_AT: usize = 24;

/// Writes an archive of a few kernels.
fn make(path: &Path) -> Result<(), String> {
    let compiler = Compiler::new(None).map_err(|error| error.to_string())?;
    let hopper = Arch::from_name("sm_90a").ok_or("an unknown architecture")?;
    let is_small = |kernel: &mambo_cuda::Specialisation| {
        let name = kernel.module_name();
        ["add", "step"].iter().any(|stem| name == *stem)
    };
    let mut file = Vec::new();
    write_archive(&compiler, &[hopper], &is_small, &mut file, &|_, _| {})
        .map_err(|error| error.to_string())?;
    fs::write(path, file).map_err(|error| error.to_string())
}

/// Checks an op with an archive; prints the note and what failed.
fn check(path: &Path, op: &str) -> Result<(), String> {
    let options = CudaOptions { kernel_archive: Some(path.to_owned()), ..CudaOptions::default() };
    let mut backend = CudaBackend::new(&options).map_err(|error| error.to_string())?;
    println!("note: {}", backend.note().unwrap_or("none"));
    let is_wanted = |row: &KernelRow| row.op.name() == op;
    print!("{}", check_amount(&mut backend, &is_wanted, Amount::smallest(1)));
    Ok(())
}

/// What a run of this program prints.
fn output(mut command: Command, words: &[&str]) -> Result<String, String> {
    let output = command.args(words).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn expect(text: &str, words: &[&str]) -> Result<(), String> {
    match words.iter().find(|words| !text.contains(**words)) {
        Some(missing) => Err(format!("it does not say `{missing}`:\n{text}")),
        None => Ok(()),
    }
}

fn all(both: &Path) -> Result<(), String> {
    let problem = |error: std::io::Error| error.to_string();
    let path = both.join("mambo.kernels");
    let name = path.to_str().ok_or("a path that is no text")?;
    output(emulated::this_program(both, "arch=90"), &["make", name])?;
    let driver_alone = both.join("driver");
    fs::create_dir_all(&driver_alone).map_err(problem)?;
    fs::copy(both.join("libcuda.so.1"), driver_alone.join("libcuda.so.1")).map_err(problem)?;

    let text = output(emulated::this_program(&driver_alone, "arch=90"), &["check", name, "add"])?;
    expect(&text, &["note: none", "1 cases, 0 failures"])?;
    let text = output(emulated::this_program(&driver_alone, "arch=90"), &["check", name, "relu2"])?;
    expect(&text, &["kernel relu2 for sm_90a did not come with mambo", "pip install nvidia-cuda-nvrtc"])?;

    // Made by CUDA 13, and there is no other compiler whose code this driver could load.
    let text = output(emulated::this_program(both, "arch=90 driver=12090"), &["check", name, "add"]);
    expect(&text.err().unwrap_or_default(), &["supports only 12.9"])?;

    let mut other = fs::read(&path).map_err(problem)?;
    other[DIGEST_AT] ^= 1;
    let other_path = both.join("other.kernels");
    fs::write(&other_path, other).map_err(problem)?;
    let other_name = other_path.to_str().ok_or("a path that is no text")?;
    let text = output(emulated::this_program(both, "arch=90"), &["check", other_name, "relu2"])?;
    expect(&text, &["belongs to another version of mambo", "1 cases, 0 failures"])?;

    let damaged = both.join("damaged.kernels");
    fs::write(&damaged, b"not an archive").map_err(problem)?;
    let damaged_name = damaged.to_str().ok_or("a path that is no text")?;
    let text = output(emulated::this_program(both, "arch=90"), &["check", damaged_name, "add"])?;
    expect(&text, &["is not used, and kernels are compiled", "1 cases, 0 failures"])
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", path] => make(&PathBuf::from(path)),
        ["check", path, op] => check(&PathBuf::from(path), op),
        _ => match emulated::build() {
            Err(reason) => {
                println!("SKIPPED: no GPU can be emulated, so no archive was loaded: {reason}");
                Ok(())
            }
            Ok(folder) => {
                let done = all(&folder);
                let _ = fs::remove_dir_all(&folder);
                done
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}
