//! Metadata becomes a [`ModelSpec`], a `ModelSpec` becomes a graph, and canonical weight names find their
//! tensors.
//!
//! The only crate that knows architecture names. It must not know kernels, plans, sequences or text.

mod bind;
mod blocks;
mod build;
mod check;
mod config;
mod counts;
mod describe;
mod error;
mod export;
mod families;
mod fields;
mod gguf;
mod kv_scale;
mod locate;
mod names;
mod nearest;
mod presets;
mod quantization;
mod spec;
mod storage;
mod summary;
mod unread;
mod weights;

pub use bind::{BoundWeight, WeightTable, bind, problems};
pub use build::BuildOptions;
pub use check::{MAX_LAYERS, MAX_WIDTH};
pub use counts::Parameters;
pub use describe::describe;
pub use error::ModelError;
pub use export::{ExportTensor, Order};
pub use families::{FAMILIES, Family};
pub use gguf::ShapeOf;
pub use names::{Part, Place, Transform};
pub use nearest::{Nearest, nearest};
pub use presets::{PRESETS, Preset};
pub use spec::{
    AttentionSpec, CacheLayers, Factor, Half, LayerSpec, Mamba2Spec, Mixer, MlpSpec, ModelSpec, MoeSpec,
    MtpSpec,
};
pub use weights::Weight;
