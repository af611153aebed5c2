//! The parameters of ops: sizes and the settings that belong to them.

/// Sizes of one Mamba-2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SsmDims {
    /// Heads (`Hm`).
    pub heads: usize,
    /// Channels per head (`P`).
    pub head_dim: usize,
    /// State size per channel (`N`).
    pub state: usize,
    /// Groups that share B and C (`G`); head `h` reads group `h / (heads / groups)`.
    pub groups: usize,
    /// Taps of the causal convolution (`K`).
    pub taps: usize,
}

impl SsmDims {
    /// Channels of x, y and z.
    pub fn inner(self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of B, and of C.
    pub fn group_state(self) -> usize {
        self.groups * self.state
    }

    /// Channels that pass the convolution: x, B and C.
    pub fn conv_dim(self) -> usize {
        self.inner() + 2 * self.group_state()
    }

    /// Rows of the input projection: z, x, B, C, dt.
    pub fn in_proj(self) -> usize {
        self.inner() + self.conv_dim() + self.heads
    }
}

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDims {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; query head `h` reads key head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
}

/// One attention layer: its sizes, and how scores become weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Sizes.
    pub dims: AttentionDims,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Positions that a token sees, itself included; all where none.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Whether every query head has a score of its own that takes part in the softmax and adds no value.
    pub sinks: bool,
}

impl Attention {
    /// Scores times `head_dim^-0.5`, and nothing else.
    pub fn plain(dims: AttentionDims) -> Self {
        let scale = 1.0 / (dims.head_dim as f32).sqrt();
        Attention { dims, scale, window: None, soft_cap: None, sinks: false }
    }

    /// The first position that a token at this one sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// What router logits become before experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// `1 / (1 + exp(-l))`.
    Sigmoid,
    /// `exp(l)` divided by its sum over all experts; normalised over the chosen ones it is their softmax.
    Softmax,
}

/// How a router picks experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteDims {
    /// What logits become.
    pub scoring: Scoring,
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen per token.
    pub top_k: usize,
    /// Groups the experts are divided into (1: no groups).
    pub groups: usize,
    /// Groups kept before the experts are chosen.
    pub top_groups: usize,
    /// Whether the chosen weights are divided by their sum.
    pub normalize: bool,
    /// Factor on the chosen weights.
    pub scale: f32,
}

/// What opens a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `g / (1 + exp(-g))`.
    Silu,
    /// The Gaussian error linear unit by its usual approximation,
    /// `g/2 · (1 + tanh(√(2/π) · (g + 0.044715·g³)))`.
    GeluTanh,
    /// The Gaussian error linear unit, `g/2 · (1 + erf(g/√2))`.
    Gelu,
    /// `1 / (1 + exp(-g))`.
    Sigmoid,
    /// With `g` at most `limit` and `u` within `±limit`: `g / (1 + exp(-alpha·g)) · (u + 1)`.
    ClampedSilu {
        /// Steepness of the gate.
        alpha: f32,
        /// Bound of both inputs.
        limit: f32,
    },
}
