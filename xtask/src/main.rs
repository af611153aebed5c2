//! Project chores: `cargo xtask tidy`.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

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
        _ => {
            eprintln!("usage: cargo xtask tidy");
            Ok(ExitCode::FAILURE)
        }
    }
}
