//! Writes a model as a GGUF file or a safetensors folder, in one pass and with little memory, wherever the
//! values come from.
//!
//! A [`Recipe`] says how each tensor is stored, [`metadata`] what a file says about itself, a [`Source`] has
//! the rows; [`write_gguf`] and [`folder::write`] stream them to disk.

mod container;
mod convert;
pub mod folder;
mod importance;
pub mod metadata;
mod mixes;
mod pattern;
mod planned;
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
pub use container::Container;
pub use convert::{Converter, SquaredError};
pub use importance::Importance;
pub use planned::{Content, Layout, Planned};
pub use recipe::Recipe;
use stream::Sink;

/// Where the values of a file come from. Workers ask for rows at the same time.
pub trait Source: Sync {
    /// Writes rows `rows` of a tensor into `out`, in the tensor's stored type.
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<()>;
}

/// Where the file goes.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// The file's name.
    pub path: &'a Path,
    /// Whether a file of that name may be replaced.
    pub force: bool,
    /// Workers that make rows.
    pub threads: usize,
    /// What the progress bar says.
    pub what: &'a str,
    /// Ends the work between pieces, so that what was written is removed.
    pub interrupt: &'a Interrupt,
}

/// Refuses a file that must not be replaced, before any work is done.
pub fn check_file(path: &Path, force: bool) -> Result<()> {
    if path.is_file() && !force {
        bail!("{} exists; give another name, or --force to replace it", path.display());
    }
    Ok(())
}

/// Writes a GGUF file, complete or not at all, and returns its size in bytes.
pub fn write_gguf(
    output: Output,
    metadata: &GgufMetadata,
    layout: &Layout,
    source: &dyn Source,
) -> Result<u64> {
    check_file(output.path, output.force)?;
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    for planned in &layout.tensors {
        tensors.push(GgufTensor {
            name: planned.name.clone(),
            dtype: planned.dtype,
            shape: Shape::new(&planned.shape)?,
        });
    }
    let mut writer = GgufWriter::create(output.path, metadata, &tensors)?;
    stream_all(output, layout, source, &mut writer)?;
    // Somebody else may have been here in the meantime.
    check_file(output.path, output.force)?;
    writer.finish()?;
    Ok(std::fs::metadata(output.path)?.len())
}

impl Sink for GgufWriter {
    fn write(&mut self, tensor: &Planned, piece: &[u8]) -> Result<()> {
        Ok(GgufWriter::write(self, &tensor.name, piece)?)
    }
}

/// Streams all tensors, with a progress bar; Ctrl-C ends it.
fn stream_all(output: Output, layout: &Layout, source: &dyn Source, sink: &mut dyn Sink) -> Result<()> {
    let total = layout.bytes();
    let bar = ByteBar::new(output.what, total);
    stream::stream(sink, &layout.tensors, source, output.threads, &mut |done| {
        bar.at(done, total);
        output.interrupt.check("nothing was written")
    })?;
    bar.done();
    Ok(())
}
