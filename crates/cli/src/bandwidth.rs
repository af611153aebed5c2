//! How fast this machine reads memory: the limit of everything that streams weights.

use anyhow::Result;
use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_kernel::Backend;

/// Bytes read per pass, if there is memory for them: more than any cache holds.
const PASS_BYTES: usize = 512 << 20;

/// Bytes per second that `threads` threads read together.
pub fn read_bandwidth(threads: usize) -> Result<f64> {
    let mut backend = CpuBackend::new(CpuOptions { threads, ..CpuOptions::default() })?;
    let spare = backend.memory()?.host.map_or(PASS_BYTES, |bytes| bytes as usize / 4);
    Ok(backend.read_bandwidth(PASS_BYTES.min(spare))? * 1e9)
}
