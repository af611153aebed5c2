//! The emulated GPU (`emulator/`) as tests use it: it is built with the system's C++ compiler, and a test program runs
//! itself again with it in the place of the driver.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set for programs that run on the emulated GPU; says what GPU it is (emulator/driver.cpp).
pub const SETTINGS: &str = "EMULATED_GPU";

/// Builds it and returns the folder of its libraries; why not, if this machine cannot.
pub fn build() -> Result<PathBuf, String> {
    // Tests of other crates use this file, too.
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/emulator/build");
    if !script.exists() {
        return Err("its sources are not on this machine".into());
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("it runs on x86-64 Linux only".into());
    }
    let has_compiler =
        Command::new("c++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !has_compiler.is_ok_and(|status| status.success()) {
        return Err("it needs a C++ compiler (c++)".into());
    }
    // A folder for this process, which no other one changes while it is used.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("emulated-gpu-{}", std::process::id()));
    let built = Command::new(script).arg(&folder).output().map_err(|error| error.to_string())?;
    match built.status.success() {
        true => Ok(folder),
        false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
    }
}

/// This program once more, on the emulated GPU in `folder`.
pub fn this_program(folder: &Path, settings: &str) -> Command {
    let program = std::env::current_exe().expect("a running program has a file");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder).env(SETTINGS, settings);
    command
}

/// Where its kernels are kept: compiling them takes most of the time.
pub fn kernel_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-kernels")
}
