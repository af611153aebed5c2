//! From flags to the library: which model, which backend, how it is loaded; the progress bar and notes meanwhile.

use std::path::Path;

use anyhow::{Result, bail};
use mambo_checkpoint::Checkpoint;
use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_kernel::Backend;
use mambo_model::Preset;
use mambo_runtime::{Described, Engine, LoadEvent, LoadOptions, Model, OpenOptions, open_checkpoint};

use crate::progress::ByteBar;
use crate::terminal::put_note;
use crate::{builtin, hub};

/// The model of that name, or the built-in one.
pub fn model(name: Option<&str>) -> Result<Model> {
    Ok(match name {
        None => Model::from_bytes(builtin::NAME, builtin::BYTES)?,
        Some(name) => {
            refuse_preset(name)?;
            Model::open(hub::located(name)?, &OpenOptions::default())?
        }
    })
}

/// A preset is a shape to describe, not something that runs.
fn refuse_preset(name: &str) -> Result<()> {
    if Path::new(name).exists() || Preset::named(name).is_err() {
        return Ok(());
    }
    bail!(
        "{name} is a preset, a model's shape without weights; write a file of that shape with random weights \
         first (mambo synth {name} -o {name}.gguf) and give that"
    )
}

/// The same for commands that are content with metadata, or with a preset.
pub fn described(name: Option<&str>) -> Result<Described> {
    Ok(match name {
        None => Described::of(model(None)?),
        Some(name) => Described::open(&hub::located_metadata(name)?.to_string_lossy())?,
    })
}

/// The same, of the headers that a hub has of a model that is not on this machine.
pub fn described_anywhere(name: Option<&str>) -> Result<Described> {
    match name.map(hub::remote_headers).transpose()?.flatten() {
        Some(headers) => Ok(Described::of(Model::of(headers)?)),
        None => described(name),
    }
}

/// The files alone, whatever model is in them.
pub fn files(name: &str) -> Result<Checkpoint> {
    Ok(open_checkpoint(hub::located_metadata(name)?, &OpenOptions { metadata_only: true })?)
}

/// The backend for so many threads; all cores if left out.
pub fn backend(threads: Option<usize>) -> Result<Box<dyn Backend>> {
    if threads == Some(0) {
        bail!("--threads is 0; use 1 or more");
    }
    Ok(Box::new(CpuBackend::new(CpuOptions { threads: threads.unwrap_or(0), ..CpuOptions::default() })?))
}

/// Loads a model on the CPU.
pub fn engine(model: &Model, threads: Option<usize>, options: &LoadOptions) -> Result<Engine> {
    let backend = backend(threads)?;
    Ok(with_bar(|on_event| model.load(backend, options, on_event))?)
}

/// Runs something that loads a model, with a progress bar if a person is watching.
pub fn with_bar<T>(load: impl FnOnce(&mut dyn FnMut(LoadEvent)) -> T) -> T {
    let bar = ByteBar::new("loading", 0);
    let loaded = load(&mut |event| match event {
        LoadEvent::Note(note) => put_note(format_args!("note: {note}")),
        LoadEvent::Progress { done, total } => bar.at(done, total),
    });
    bar.done();
    loaded
}
