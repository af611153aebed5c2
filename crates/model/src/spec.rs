//! What a model is: a list of layers with every size per layer, plus embedding, head and MTP head.
//!
//! Must not know where a specification comes from (a config file, GGUF metadata, a preset) nor how it is
//! computed.

use mambo_kernel::{AttentionDims, RouteDims, SsmDims};

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
    /// Positions the model was trained for, where the file says so.
    pub context: Option<usize>,
    /// Token that starts a text.
    pub bos: Option<u32>,
    /// Tokens that end an answer as far as the metadata knows, in ascending order.
    pub stop_tokens: Vec<u32>,
    /// Oddities of the file that were settled while reading it, as sentences for a person.
    pub notes: Vec<String>,
}

/// One residual layer: `x + mixer(rms_norm(x))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// Epsilon of the layer's norms.
    pub norm_eps: f32,
    /// What the layer computes.
    pub mixer: Mixer,
}

/// The kinds of layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixer {
    /// Mamba-2 state-space mixer.
    Mamba2(SsmDims),
    /// Causal attention without position signal.
    Attention(AttentionDims),
    /// `down(relu(up(x))²)`.
    Mlp {
        /// Columns between the two projections.
        width: usize,
    },
    /// Mixture of experts.
    Moe(MoeSpec),
}

/// Sizes of one mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// How experts are chosen.
    pub route: RouteDims,
    /// Columns inside an expert.
    pub expert_width: usize,
    /// Width the experts read and write, where it is not the hidden width.
    pub latent: Option<usize>,
    /// Columns inside the shared expert, where there is one.
    pub shared_width: Option<usize>,
}

impl MoeSpec {
    /// Width the experts read and write in a model of this hidden width.
    pub fn io_width(&self, hidden: usize) -> usize {
        self.latent.unwrap_or(hidden)
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
    /// Mamba-2 layers in layer order.
    pub state_layers: Vec<SsmDims>,
}

impl ModelSpec {
    /// The layers that keep memory, trunk and MTP head together.
    pub fn cache_layers(&self) -> CacheLayers {
        let mut kv_layers = self.trunk_kv_layers();
        kv_layers.extend(self.mtp.map(|m| m.attention));
        let state_layers = self.layers.iter().filter_map(|l| match l.mixer {
            Mixer::Mamba2(d) => Some(d),
            _ => None,
        });
        CacheLayers { kv_layers, state_layers: state_layers.collect() }
    }

    /// Attention layers of the trunk, in layer order.
    pub fn trunk_kv_layers(&self) -> Vec<AttentionDims> {
        let attention = self.layers.iter().filter_map(|l| match l.mixer {
            Mixer::Attention(a) => Some(a),
            _ => None,
        });
        attention.collect()
    }

    /// The schedule as one letter per layer: `M` Mamba-2, `*` attention, `-` MLP, `E` experts.
    pub fn pattern(&self) -> String {
        self.layers.iter().map(|l| l.mixer.letter()).collect()
    }
}

impl Mixer {
    /// The letter of this kind in a schedule.
    pub fn letter(&self) -> char {
        match self {
            Mixer::Mamba2(_) => 'M',
            Mixer::Attention(_) => '*',
            Mixer::Mlp { .. } => '-',
            Mixer::Moe(_) => 'E',
        }
    }

    /// The name of this kind.
    pub fn name(&self) -> &'static str {
        match self {
            Mixer::Mamba2(_) => "mamba2",
            Mixer::Attention(_) => "attention",
            Mixer::Mlp { .. } => "mlp",
            Mixer::Moe(_) => "moe",
        }
    }
}
