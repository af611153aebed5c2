//! Metadata becomes a [`ModelSpec`], a `ModelSpec` becomes a graph, and canonical weight names find their
//! tensors.
//!
//! The only crate that knows architecture names. It must not know kernels, plans, sequences or text.

mod architecture;
mod check;
mod config;
mod counts;
mod error;
mod fields;
mod schedule;
mod spec;
mod summary;

pub use architecture::{ARCHITECTURES, Architecture};
pub use check::{MAX_LAYERS, MAX_WIDTH};
pub use counts::Parameters;
pub use error::ModelError;
pub use spec::{CacheLayers, LayerSpec, Mixer, ModelSpec, MoeSpec, MtpSpec};
