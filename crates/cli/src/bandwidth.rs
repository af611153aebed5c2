//! How fast this machine reads memory: the limit of everything that streams weights.

use anyhow::Result;
use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_cuda::CudaBackend;
use mambo_kernel::Backend;

use crate::args::{BackendArgs, BackendName};
use crate::{machine, open};

/// Bytes read per pass, if there is memory for them: more than any cache holds.
const PASS_BYTES: usize = 512 << 20;
/// The same on a GPU.
const GPU_PASS_BYTES: usize = 2 << 30;
/// The same on a GPU that may be a small one.
pub const ANY_GPU_PASS_BYTES: usize = 256 << 20;

/// Bytes per second that `threads` threads read together.
pub fn read_bandwidth(threads: usize) -> Result<f64> {
    let mut backend = CpuBackend::new(CpuOptions { threads, ..CpuOptions::default() })?;
    let spare = backend.memory()?.host.map_or(PASS_BYTES, |bytes| bytes as usize / 4);
    Ok(backend.read_bandwidth(PASS_BYTES.min(spare))? * 1e9)
}

/// Bytes per second that a GPU reads.
pub fn gpu_bandwidth(gpu: &mut CudaBackend) -> Result<f64> {
    let spare = gpu.memory()?.device.map_or(GPU_PASS_BYTES, |bytes| bytes as usize / 2);
    Ok(gpu.read_bandwidth(GPU_PASS_BYTES.min(spare))? * 1e9)
}

/// Bytes per second that the memory behind a backend gives, which was opened for these flags.
pub fn bandwidth_of(backend: &dyn Backend, place: BackendArgs) -> Result<f64> {
    match backend.memory()?.device {
        _ if place.backend == BackendName::WebGpu => {
            Ok(open::any_gpu(place)?.read_bandwidth(ANY_GPU_PASS_BYTES)? * 1e9)
        }
        Some(_) => gpu_bandwidth(&mut open::gpu(place)?),
        None => read_bandwidth(place.threads.unwrap_or_else(machine::cores)),
    }
}
