//! Project chores: `cargo xtask tidy` checks the layout, `cargo xtask web` builds the browser package and its page,
//! `cargo xtask cubins FILE [ARCH]...` compiles the kernels of a release.

mod tidy;
mod web;

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the root");
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => {
            let found = tidy::findings(root)?;
            for finding in &found {
                eprintln!("{finding}");
            }
            eprintln!("tidy: {} findings", found.len());
            Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some("web") => web::build(root).map(|()| ExitCode::SUCCESS),
        // The compiler of kernels is not part of this program, which has to be built quickly.
        Some("cubins") => {
            let mut cargo = Command::new("cargo");
            cargo.args(["run", "--release", "--package", "mambo-cuda", "--example", "cubins", "--"]);
            let status = cargo.args(std::env::args().skip(2)).status()?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ => {
            eprintln!("usage: cargo xtask tidy | web | cubins FILE [ARCH]...");
            Ok(ExitCode::FAILURE)
        }
    }
}
