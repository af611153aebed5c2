//! NVIDIA GPUs as a backend: kernels in CUDA C++ that are compiled where they run, one graph per program and number of
//! rows, weights and caches in the device's memory.
//!
//! Driver and compiler are looked for when they are needed, so that a program with this crate starts anywhere.

mod activation;
mod arch;
mod archive;
mod backend;
mod bandwidth;
mod caches;
mod compiler;
mod device;
mod driver;
mod fusion;
mod graph;
mod kernels;
mod launch;
mod loader;
mod memory;
mod modules;
mod params;
mod program;
mod source;
mod step_table;
mod steps;
mod tensor_map;
mod upload;
mod weights;

pub use arch::Arch;
pub use backend::{CudaBackend, CudaError, CudaOptions};
pub use compiler::{ArchiveError, CompileError, Compiled, Compiler, KernelFiles, write_archive};
pub use device::{DeviceInfo, NoGpu, devices, usable_device};
pub use source::{Expects, Specialisation};

/// Everything that a release carries for an architecture: what tests compile, and the other sizes of its kernels that
/// the released models meet.
pub fn shipped(arch: Arch) -> Vec<Specialisation> {
    let mut all = specialisations(arch);
    all.extend(kernels::released_sizes(arch).into_iter().filter(|kernel| kernel.runs_on(arch)));
    all
}

/// Every kernel of an architecture in every form, at the sizes that are met most: what tests compile.
pub fn specialisations(arch: Arch) -> Vec<Specialisation> {
    let all = kernels::declarations(arch).into_iter().flat_map(|declaration| declaration.specialisations);
    let own = kernels::step::specialisations().into_iter().chain([bandwidth::kernel()]);
    all.chain(kernels::fused_specialisations(arch)).chain(own).filter(|kernel| kernel.runs_on(arch)).collect()
}
