//! Any GPU as a backend, through wgpu: Vulkan, Metal and DX12 natively, WebGPU in a browser. Kernels are WGSL files, one
//! op each; weights, caches and activations live in the device's memory within the limits that the adapter has.
//!
//! Nothing here blocks where nothing may (a browser): an adapter and a device are requested by `async` functions, and
//! collecting polls. Native helpers that block are in `device.rs`.

mod activation;
mod backend;
mod buffers;
mod caches;
mod cell_traffic;
mod device;
mod diagnosis;
mod faults;
mod fusion;
mod kernels;
mod params;
mod pipelines;
mod pool;
mod profile;
mod program;
mod source;
mod step_table;
mod steps;
mod stored;
mod vectors;
mod watcher;
mod weights;

pub use backend::{WebGpuBackend, WebGpuOptions};
pub use device::{DeviceInfo, DeviceKind, Limits, NoDevice};
#[cfg(not(target_family = "wasm"))]
pub use device::{block_on, devices};
pub use diagnosis::Diagnosis;
pub use source::Specialisation;
pub use watcher::Watcher;

/// Everything that tests compile: every form of every kernel, at the sizes that are met most and some odd ones.
pub fn specialisations() -> Vec<Specialisation> {
    let all = kernels::declarations().into_iter().flat_map(|declaration| declaration.specialisations);
    let together = kernels::experts::specialisations().into_iter().chain(kernels::several::specialisations());
    all.chain(together).chain(kernels::step::specialisations()).chain(diagnosis::specialisations()).collect()
}
