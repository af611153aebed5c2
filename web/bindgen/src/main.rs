//! `bindgen MODULE FOLDER`: the module and the JavaScript around it, as `core.js` and `core_bg.wasm` in a folder.

use anyhow::{Context, Result};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (module, folder) = arguments.next().zip(arguments.next()).context("usage: bindgen MODULE FOLDER")?;
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("core").typescript(true).remove_name_section(true);
    bindgen.web(true)?.generate(folder)
}
