//! From flags to the library: which model, which backend, how it is loaded; the progress bar and notes meanwhile.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use mambo_checkpoint::Checkpoint;
use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_cuda::{CudaBackend, CudaOptions};
use mambo_kernel::Backend;
use mambo_model::Preset;
use mambo_runtime::{Described, Engine, LoadEvent, LoadOptions, Model, OpenOptions, open_checkpoint};
use mambo_webgpu::{WebGpuBackend, WebGpuOptions};

use crate::args::{BackendArgs, BackendName};
use crate::hints::one_sentence;
use crate::progress::ByteBar;
use crate::terminal::put_note;
use crate::{builtin, environment, hub};

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

/// The backend that flags name; with auto the GPU if there is one.
pub fn backend(place: BackendArgs) -> Result<Box<dyn Backend>> {
    Ok(match automatic_gpu(place)? {
        Some(gpu) => Box::new(gpu),
        None if place.backend == BackendName::Cuda => Box::new(gpu(place)?),
        None if place.backend == BackendName::WebGpu => Box::new(any_gpu(place)?),
        None => Box::new(cpu(place)?),
    })
}

fn cpu(place: BackendArgs) -> Result<CpuBackend> {
    if place.threads == Some(0) {
        bail!("--threads is 0; use 1 or more");
    }
    if place.device.is_some() {
        bail!("--device numbers GPUs; leave it out, or name a GPU's backend (--backend cuda or webgpu)");
    }
    Ok(CpuBackend::new(CpuOptions { threads: place.threads.unwrap_or(0), ..CpuOptions::default() })?)
}

/// The GPU that flags name.
pub fn gpu(place: BackendArgs) -> Result<CudaBackend> {
    let opened = CudaBackend::new(&gpu_options(place.device.unwrap_or(0)));
    let gpu =
        opened.map_err(|error| anyhow!("cannot use a GPU: {error}; leave --backend out to use the CPU"))?;
    if let Some(note) = gpu.note() {
        put_note(format_args!("note: {note}"));
    }
    Ok(gpu)
}

/// The GPU that flags name, through whatever interface it has.
pub fn any_gpu(place: BackendArgs) -> Result<WebGpuBackend> {
    let options = WebGpuOptions { device: place.device.unwrap_or(0), ..WebGpuOptions::default() };
    WebGpuBackend::new(&options)
        .map_err(|error| anyhow!("cannot use a GPU: {error}; leave --backend out to use the CPU"))
}

/// Where kernels of a GPU are found.
pub fn gpu_options(device: usize) -> CudaOptions {
    CudaOptions { device, kernel_folder: environment::kernel_folder(), kernel_archive: kernel_archive() }
}

/// Compiled kernels that came with the program lie beside it.
fn kernel_archive() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.join("mambo.kernels"))
}

fn has_gpu() -> bool {
    CudaBackend::check(&gpu_options(0)).is_ok()
}

/// Whether flags lead to a GPU, if the model fits on it.
pub fn is_gpu(place: BackendArgs) -> bool {
    match place.backend {
        BackendName::Cpu => false,
        BackendName::Cuda | BackendName::WebGpu => true,
        BackendName::Auto => place.threads.is_none() && (place.device.is_some() || has_gpu()),
    }
}

/// The GPU that is taken if no backend is named, if there is one; its number or a number of threads name one, too.
fn automatic_gpu(place: BackendArgs) -> Result<Option<CudaBackend>> {
    if place.backend != BackendName::Auto || place.threads.is_some() {
        return Ok(None);
    }
    match place.device {
        Some(_) => gpu(place).map(Some),
        // Without a GPU there is nothing to say: `doctor` says why.
        None if has_gpu() => gpu(place).map(Some),
        None => Ok(None),
    }
}

/// Loads a model where flags say. With auto that is the GPU; if the model cannot be loaded there, a note says so and it
/// is the CPU.
pub fn engine(model: &Model, place: BackendArgs, options: &LoadOptions) -> Result<Engine> {
    let load = |backend| with_bar(|on_event| model.load(backend, options, on_event));
    let Some(gpu) = automatic_gpu(place)? else { return Ok(load(backend(place)?)?) };
    let name = gpu.name().to_owned();
    match load(Box::new(gpu)) {
        Ok(engine) => {
            put_note(format_args!("note: running on {name} (--backend cpu runs on the CPU)"));
            Ok(engine)
        }
        Err(error) if place.device.is_none() => {
            let error = one_sentence(&error.into());
            put_note(format_args!("note: running on the CPU, because {name} cannot be used: {error}"));
            Ok(load(Box::new(cpu(place)?))?)
        }
        Err(error) => Err(error.into()),
    }
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
