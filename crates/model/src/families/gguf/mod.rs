//! GGUF files as llama.cpp reads and writes them: what a layer has is read off its tensors, the rest off keys that the
//! families share. What differs between families is data, a [`Dialect`] in the folder of each.

mod arrange;
mod keys;
mod mixers;
mod read;

use mambo_checkpoint::GgufValue;
use mambo_kernel::{Activation, Attention, AttentionDims, RopePairs, Scoring};

pub(crate) use arrange::{Arrangement, arrange};
pub(crate) use keys::keys;
pub(crate) use mixers::mamba2;
pub(crate) use read::read;

/// Keys without the prefix of their architecture.
pub(crate) type Keys = Vec<(&'static str, GgufValue)>;

/// What converters write where a model does not name its context.
pub(crate) const UNLIMITED_CONTEXT: usize = 1 << 20;

/// What the keys and tensors of a family's files do not say.
pub(crate) struct Dialect {
    /// Which rotary channels are rotated together: converters reorder the rows of some families.
    pub pairs: RopePairs,
    /// What opens gates.
    pub activation: Activation,
    /// Every nth layer is global where a file has a window but does not list its local layers.
    pub global_every: Option<usize>,
    /// Rotary base of local layers where a file does not say; their positions are not stretched then.
    pub local_base: Option<f64>,
    /// Whether YaRN's ramp ends at whole channels.
    pub yarn_truncates: bool,
    /// Where the factors of the family are.
    pub multipliers: Multipliers,
    /// Whether `rope.scaling.finetuned` says if there are positions at all.
    pub has_rope_switch: bool,
    /// How routers score experts where a file does not say.
    pub scoring: Scoring,
    /// Factor on scores where a file does not say, in a model of so many hidden channels and layers.
    pub scale: fn(&AttentionDims, hidden: usize, depth: usize) -> f32,
    /// Whether the tensor of queries holds a gate beside each head.
    pub is_gated: bool,
    /// Whether a layer without attention is known by having no key heads.
    pub lists_kv_heads: bool,
    /// Whether value heads of delta nets are stored by their number within a key head first.
    pub tiled_values: bool,
}

/// Where the factors are that a family multiplies activations with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Multipliers {
    /// In the weights.
    InWeights,
    /// Embeddings are multiplied with the root of the hidden width, which goes without saying.
    RootOfHidden,
    /// In keys, as Granite has them.
    InKeys,
}

/// A dialect with nothing special.
pub(crate) const PLAIN: Dialect = Dialect {
    pairs: RopePairs::Halves,
    activation: Activation::Silu,
    global_every: None,
    local_base: None,
    yarn_truncates: true,
    multipliers: Multipliers::InWeights,
    has_rope_switch: false,
    scoring: Scoring::Softmax,
    scale: |dims, _, _| Attention::plain(*dims).scale,
    is_gated: false,
    lists_kv_heads: false,
    tiled_values: false,
};
