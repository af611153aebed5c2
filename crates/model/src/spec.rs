//! What a model is: a list of layers with every size per layer, plus embedding, head and MTP head.
//!
//! Must not know where a specification comes from (a config file, GGUF metadata, a preset) nor how it is
//! computed.

use mambo_kernel::{Activation, Attention, AttentionDims, Rope, RouteDims, SsmDims};

use crate::names::Part;

/// A complete description of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Name of the family, such as `nemotron_h`.
    pub architecture: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// The layers of the trunk, in order.
    pub layers: Vec<LayerSpec>,
    /// Epsilon of the final norm.
    pub norm_eps: f32,
    /// The head that predicts one token further, where the model has one.
    pub mtp: Option<MtpSpec>,
    /// Whether the output projection is the embedding.
    pub tied_embeddings: bool,
    /// Factors of the family, as factors on weights.
    pub factors: Vec<Factor>,
    /// Bound of the logits, where they have one.
    pub logit_cap: Option<f32>,
    /// Positions the model was trained for, where the file says so.
    pub context: Option<usize>,
    /// Token that starts a text.
    pub bos: Option<u32>,
    /// Tokens that end an answer as far as the metadata knows, in ascending order.
    pub stop_tokens: Vec<u32>,
    /// Oddities of the file that were settled while reading it, as sentences for a person.
    pub notes: Vec<String>,
}

/// One layer: one or more residual steps.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Epsilon of the layer's norms.
    pub norm_eps: f32,
    /// What is added to the residual stream, in order: a mixer alone, or a mixer and then a feed-forward part.
    pub halves: Vec<Half>,
}

/// One residual step: `x + mixers(norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// What is computed; several run side by side on the same normed rows and are added up.
    pub mixers: Vec<Mixer>,
    /// Whether the sum is normed once more before it is added.
    pub post_norm: bool,
}

impl LayerSpec {
    /// A layer of one mixer.
    pub fn of(norm_eps: f32, mixer: Mixer) -> Self {
        LayerSpec { norm_eps, halves: vec![Half { mixers: vec![mixer], post_norm: false }] }
    }

    /// A layer of a mixer and a feed-forward part.
    pub fn pair(norm_eps: f32, mixer: Mixer, feed_forward: Mixer) -> Self {
        let half = |mixer| Half { mixers: vec![mixer], post_norm: false };
        LayerSpec { norm_eps, halves: vec![half(mixer), half(feed_forward)] }
    }

    /// Everything the layer computes, in order.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.halves.iter().flat_map(|half| &half.mixers)
    }

    /// The kinds of its mixers: `mamba2`, or `attention+mlp`.
    pub fn name(&self) -> String {
        self.mixers().map(Mixer::name).collect::<Vec<_>>().join("+")
    }
}

/// What a residual step can compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Mamba-2 state-space mixer.
    Mamba2(Mamba2Spec),
    /// Causal attention.
    Attention(AttentionSpec),
    /// Gated delta net.
    DeltaNet(SsmDims),
    /// LFM2's gated convolution.
    ShortConv {
        /// Taps of the convolution.
        taps: usize,
        /// Whether a bias is stored.
        has_bias: bool,
    },
    /// Dense feed-forward part.
    Mlp(MlpSpec),
    /// Mixture of experts.
    Moe(MoeSpec),
}

/// One Mamba-2 mixer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Sizes.
    pub dims: SsmDims,
    /// Groups of channels that the gated norm takes together; without it the gate alone is applied.
    pub norm_groups: Option<usize>,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
}

/// One attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Sizes, window, and how scores are made.
    pub attention: Attention,
    /// Rotary positions, where the layer has any.
    pub rope: Option<Rope>,
    /// Whether every head of queries and keys is normed.
    pub qk_norm: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub o_bias: bool,
    /// Whether the output is multiplied with the sigmoid of a projection of its own.
    pub gated: bool,
}

impl AttentionSpec {
    /// Attention without positions or anything else.
    pub fn plain(dims: AttentionDims) -> Self {
        AttentionSpec {
            attention: Attention::plain(dims),
            rope: None,
            qk_norm: false,
            qkv_bias: false,
            o_bias: false,
            gated: false,
        }
    }

    /// Its sizes.
    pub fn dims(&self) -> AttentionDims {
        self.attention.dims
    }
}

/// One dense feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Columns between the projections.
    pub width: usize,
    /// `down(activation(gate(x)) · up(x))`, or without one `down(relu(up(x))²)`.
    pub gate: Option<Activation>,
}

/// Sizes of one mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// How experts are chosen.
    pub route: RouteDims,
    /// Whether a bias is stored that only the choice of experts sees.
    pub choice_bias: bool,
    /// Whether router, gate, up and down projections have biases.
    pub biases: bool,
    /// Columns inside an expert.
    pub expert_width: usize,
    /// As in [`MlpSpec`], for routed experts and the shared one.
    pub gate: Option<Activation>,
    /// Width the experts read and write, where it is not the hidden width.
    pub latent: Option<usize>,
    /// Columns inside the shared expert, where there is one.
    pub shared_width: Option<usize>,
    /// Whether the shared expert is multiplied with the sigmoid of a projection to one number.
    pub shared_gate: bool,
}

impl MoeSpec {
    /// Width the experts read and write in a model of this hidden width.
    pub fn io_width(&self, hidden: usize) -> usize {
        self.latent.unwrap_or(hidden)
    }
}

/// A factor that a family multiplies activations with. All of them stand before or behind a projection, so they are
/// taken into its weight when that is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    /// The weight.
    pub part: Part,
    /// Rows and the factor on each of them, in row order; the last pair goes on to the end.
    pub rows: Vec<(usize, f32)>,
}

impl Factor {
    /// The same factor on all rows.
    pub fn all(part: Part, factor: f32) -> Self {
        Factor { part, rows: vec![(usize::MAX, factor)] }
    }
}

/// The multi-token prediction head: one attention layer and one mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MtpSpec {
    /// Epsilon of the head's norms.
    pub norm_eps: f32,
    /// Its attention, with a KV layer of its own.
    pub attention: AttentionDims,
    /// Its experts.
    pub moe: MoeSpec,
}

/// The layers that keep memory between steps, as a cache layout wants them.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheLayers {
    /// Attention layers in layer order; the MTP head's comes last.
    pub kv_layers: Vec<AttentionDims>,
    /// Recurrent layers in layer order.
    pub state_layers: Vec<SsmDims>,
}

impl ModelSpec {
    /// The layers that keep memory, trunk and MTP head together.
    pub fn cache_layers(&self) -> CacheLayers {
        let mut kv_layers = self.trunk_kv_layers();
        kv_layers.extend(self.mtp.map(|m| m.attention));
        let state_layers = self.mixers().filter_map(|mixer| mixer.state(self.hidden));
        CacheLayers { kv_layers, state_layers: state_layers.collect() }
    }

    /// Every mixer of the trunk, in order.
    pub fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.layers.iter().flat_map(LayerSpec::mixers)
    }

    /// Attention layers of the trunk, in layer order.
    pub fn trunk_kv_layers(&self) -> Vec<AttentionDims> {
        let attention = self.mixers().filter_map(|mixer| match mixer {
            Mixer::Attention(a) => Some(a.dims()),
            _ => None,
        });
        attention.collect()
    }

    /// How far back each of them sees; all where none.
    pub fn trunk_kv_windows(&self) -> Vec<Option<usize>> {
        let attention = self.mixers().filter_map(|mixer| match mixer {
            Mixer::Attention(a) => Some(a.attention.window),
            _ => None,
        });
        attention.collect()
    }

    /// Factors on the rows of a part; none where all are 1.
    pub fn factor(&self, part: Part) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.part == part)
    }

    /// The schedule as letters, layers of several mixers one after the other: `M` Mamba-2, `*` attention,
    /// `D` delta net, `C` short convolution, `-` MLP, `E` experts.
    pub fn pattern(&self) -> String {
        self.mixers().map(Mixer::letter).collect()
    }
}

impl Mixer {
    /// The sizes of its recurrent state in a model of this hidden width, if it has one.
    pub fn state(&self, hidden: usize) -> Option<SsmDims> {
        match *self {
            Mixer::Mamba2(m) => Some(m.dims),
            Mixer::DeltaNet(dims) => Some(dims),
            Mixer::ShortConv { taps, .. } => {
                Some(SsmDims { heads: 1, head_dim: hidden, state: 0, groups: 1, taps })
            }
            _ => None,
        }
    }

    /// The letter of this kind in a schedule.
    pub fn letter(&self) -> char {
        match self {
            Mixer::Mamba2(_) => 'M',
            Mixer::Attention(_) => '*',
            Mixer::DeltaNet(_) => 'D',
            Mixer::ShortConv { .. } => 'C',
            Mixer::Mlp(_) => '-',
            Mixer::Moe(_) => 'E',
        }
    }

    /// The name of this kind.
    pub fn name(&self) -> &'static str {
        match self {
            Mixer::Mamba2(_) => "mamba2",
            Mixer::Attention(_) => "attention",
            Mixer::DeltaNet(_) => "delta_net",
            Mixer::ShortConv { .. } => "short_conv",
            Mixer::Mlp(_) => "mlp",
            Mixer::Moe(_) => "moe",
        }
    }
}
