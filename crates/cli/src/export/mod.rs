//! Writes a model as one GGUF file, in one pass and with little memory, wherever the values come from.
//!
//! A [`Recipe`] says how each tensor is stored, [`metadata`] what the file says about itself, a [`Source`]
//! has the rows, and [`write`] streams them to disk.

pub mod metadata;
pub mod recipe;
mod stream;
mod vocabulary;

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail};
use mambo_checkpoint::{GgufMetadata, GgufTensor, GgufWriter};
use mambo_tensor::Shape;

use crate::interrupt::Interrupt;
use crate::progress::ByteBar;
pub use recipe::{Layout, Planned, Recipe};

/// Where the values of a file come from. Workers ask for rows at the same time.
pub trait Source: Sync {
    /// Writes rows `rows` of a tensor into `out`, in the tensor's stored type.
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<()>;
}

/// Where the file goes.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The file's name.
    pub path: &'a Path,
    /// Whether a file of that name may be replaced.
    pub force: bool,
    /// Workers that make rows.
    pub threads: usize,
    /// What the progress bar says.
    pub what: &'a str,
}

/// Refuses an output that must not be replaced, before any work is done.
pub fn check_output(path: &Path, force: bool) -> Result<()> {
    if path.is_file() && !force {
        bail!("{} exists; give another name, or --force to replace it", path.display());
    }
    Ok(())
}

/// Writes the file, complete or not at all, and returns its size in bytes.
pub fn write(output: Output, metadata: &GgufMetadata, layout: &Layout, source: &dyn Source) -> Result<u64> {
    check_output(output.path, output.force)?;
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    for planned in &layout.tensors {
        tensors.push(GgufTensor {
            name: planned.name.clone(),
            dtype: planned.dtype,
            shape: Shape::new(&planned.shape)?,
        });
    }
    // Seen between pieces, so that leaving early removes what was written.
    let interrupt = Interrupt::install()?;
    let mut writer = GgufWriter::create(output.path, metadata, &tensors)?;
    let total = layout.bytes();
    let bar = ByteBar::new(output.what, total);
    stream::stream(&mut writer, &layout.tensors, source, output.threads, &mut |done| {
        bar.at(done, total);
        if interrupt.pressed() {
            bail!("stopped by Ctrl-C; nothing was written");
        }
        Ok(())
    })?;
    writer.finish()?;
    bar.done();
    Ok(std::fs::metadata(output.path)?.len())
}

/// Workers to use if the command line does not say: one per core, and a second one even on a single core,
/// so that making rows goes on while others are written.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
}
