//! The CPU backend: SIMD kernels with run-time dispatch, a resident thread team, an executor.
//!
//! It knows programs of calls and the memory they run in; it must not know about graphs, models or files.

#![allow(clippy::needless_range_loop, reason = "kernels index several arrays by one lane, row or tile")]

mod activation;
mod backend;
mod bandwidth;
mod barriers;
mod cache;
mod clock;
mod cores;
pub mod host_memory;
mod isa;
mod kernels;
mod memory;
mod parking;
mod run;
mod shared;
mod simd;
mod steps;
mod stored;
mod team;
mod thread_count;
mod weights;

pub use backend::{CpuBackend, CpuError, CpuOptions};
pub use isa::Isa;
