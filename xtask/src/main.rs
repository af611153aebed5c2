//! Project chores: `cargo xtask tidy` checks the layout, `cargo xtask web` builds the browser package and its page.

mod tidy;
mod web;

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
        Some("web") => web::build(root).map(|()| ExitCode::SUCCESS),
        _ => {
            eprintln!("usage: cargo xtask tidy | web");
            Ok(ExitCode::FAILURE)
        }
    }
}
