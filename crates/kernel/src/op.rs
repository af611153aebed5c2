//! The op vocabulary: mathematical nouns with their parameters, and how types flow through them.
//!
//! An op defines *what* is computed; each has its formula, reference and hard cases in `ops/<name>.rs`.
//! How it is computed is up to the backend.

use crate::value::{Elem, ValueType};

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

/// Sizes of one attention layer. The score scale is `head_dim^-0.5`; there is no position signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDims {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads; query head `h` reads key head `h / (q_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Channels per head.
    pub head_dim: usize,
}

/// How a router picks experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteDims {
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

/// What a matmul does with each product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// `max(y, 0)²`.
    Relu2,
    /// Adds the matching element of a second input.
    Residual,
}

/// One mathematical operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Rows of a table by token id.
    Embed,
    /// Root-mean-square norm over a row, times a weight vector.
    RmsNorm {
        /// Added to the mean square inside the root.
        eps: f32,
    },
    /// `W·x` for every row; inputs x and, with [`Epilogue::Residual`], the residual.
    Matmul {
        /// Output columns.
        out: usize,
        /// What is done to the product.
        epilogue: Epilogue,
    },
    /// Element-wise sum of two inputs.
    Add,
    /// Element-wise `max(x, 0)²`.
    Relu2,
    /// Columns `start .. start+len` of the input; a view, no kernel.
    Split {
        /// First column.
        start: usize,
        /// Column count.
        len: usize,
    },
    /// Columns of the first input, then of the second.
    Concat,
    /// Causal depthwise convolution with bias and SiLU over x, B and C.
    SsmConv(SsmDims),
    /// `softplus(dt + bias)`.
    SsmDt,
    /// The Mamba-2 recurrence; inputs xBC (after convolution) and dt (after softplus).
    SsmScan(SsmDims),
    /// `rms_norm` per group of `y·SiLU(z)`, times a weight vector; inputs y and z.
    GatedGroupNorm {
        /// Groups of consecutive channels, each normalised on its own.
        groups: usize,
        /// Added to the mean square inside the root.
        eps: f32,
    },
    /// `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm` of segments of up to a chunk in one kernel; the
    /// input is the whole input projection.
    SsmStep {
        /// Sizes of the mixer.
        dims: SsmDims,
        /// Epsilon of the gated norm.
        eps: f32,
    },
    /// Causal grouped-query attention; inputs q, k and v; appends k and v to the cache first.
    Attention(AttentionDims),
    /// Sigmoid router; input logits, outputs expert ids and their weights.
    MoeRoute(RouteDims),
    /// `W[e]·x` for every (token, chosen expert); inputs x and expert ids.
    ///
    /// x has one row per token (each expert of the token reads it) or one per (token, expert).
    MoeMatmul {
        /// Experts in the weight.
        experts: usize,
        /// Experts per token.
        top_k: usize,
        /// Output columns.
        out: usize,
        /// What is done to the product; never `Residual`.
        epilogue: Epilogue,
    },
    /// Weighted sum over a token's experts; inputs rows, weights and, if `residual`, the residual.
    MoeCombine {
        /// Experts per token.
        top_k: usize,
        /// Whether a third input is added.
        residual: bool,
    },
    /// The rows of the input whose logits are wanted.
    GatherRows,
    /// The token that follows each wanted row, from its logits, as the step specifies ([`crate::ChooseInputs`]).
    Choose,
    /// f32 rows to rows of a private type; inserted by lowering where a kernel reads them.
    Quantize(Elem),
}

/// An [`Op`] without its parameters: the key of contracts and kernel rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum OpKind {
    Embed,
    RmsNorm,
    Matmul,
    Add,
    Relu2,
    Split,
    Concat,
    SsmConv,
    SsmDt,
    SsmScan,
    GatedGroupNorm,
    SsmStep,
    Attention,
    MoeRoute,
    MoeMatmul,
    MoeCombine,
    GatherRows,
    Choose,
    Quantize,
}

impl OpKind {
    /// Every kind, in the order of the vocabulary.
    pub const ALL: [OpKind; 19] = [
        OpKind::Embed,
        OpKind::RmsNorm,
        OpKind::Matmul,
        OpKind::Add,
        OpKind::Relu2,
        OpKind::Split,
        OpKind::Concat,
        OpKind::SsmConv,
        OpKind::SsmDt,
        OpKind::SsmScan,
        OpKind::GatedGroupNorm,
        OpKind::SsmStep,
        OpKind::Attention,
        OpKind::MoeRoute,
        OpKind::MoeMatmul,
        OpKind::MoeCombine,
        OpKind::GatherRows,
        OpKind::Choose,
        OpKind::Quantize,
    ];

    /// Element types of the inputs, in port order; optional ports count.
    pub fn input_elems(self) -> &'static [Elem] {
        match self {
            OpKind::Embed => &[Elem::I32],
            OpKind::MoeMatmul | OpKind::GatherRows => &[Elem::F32, Elem::I32],
            OpKind::Attention | OpKind::MoeCombine => &[Elem::F32; 3],
            OpKind::Matmul | OpKind::Add | OpKind::Concat | OpKind::SsmScan | OpKind::GatedGroupNorm => {
                &[Elem::F32; 2]
            }
            _ => &[Elem::F32],
        }
    }

    /// The stem used in graphs, plans, kernel rows and file names.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::RmsNorm => "rms_norm",
            OpKind::Matmul => "matmul",
            OpKind::Add => "add",
            OpKind::Relu2 => "relu2",
            OpKind::Split => "split",
            OpKind::Concat => "concat",
            OpKind::SsmConv => "ssm_conv",
            OpKind::SsmDt => "ssm_dt",
            OpKind::SsmScan => "ssm_scan",
            OpKind::GatedGroupNorm => "gated_group_norm",
            OpKind::SsmStep => "ssm_step",
            OpKind::Attention => "attention",
            OpKind::MoeRoute => "moe_route",
            OpKind::MoeMatmul => "moe_matmul",
            OpKind::MoeCombine => "moe_combine",
            OpKind::GatherRows => "gather_rows",
            OpKind::Choose => "choose",
            OpKind::Quantize => "quantize",
        }
    }
}

/// How a backend holds a weight; follows from the op and port that read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightUse {
    /// `[out, in]`, multiplied.
    Matrix,
    /// `[experts, out, in]`, multiplied per expert.
    Experts,
    /// `[rows, cols]`, looked up by row.
    Table,
    /// A small f32 vector or matrix, read whole (norms, biases, convolution taps).
    Vector,
}

/// Which cache an op reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// Keys and values by position.
    Kv,
    /// Recurrent state: convolution history, scan state, replay ring.
    State,
}

impl Op {
    /// The op without parameters.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Embed => OpKind::Embed,
            Op::RmsNorm { .. } => OpKind::RmsNorm,
            Op::Matmul { .. } => OpKind::Matmul,
            Op::Add => OpKind::Add,
            Op::Relu2 => OpKind::Relu2,
            Op::Split { .. } => OpKind::Split,
            Op::Concat => OpKind::Concat,
            Op::SsmConv(_) => OpKind::SsmConv,
            Op::SsmDt => OpKind::SsmDt,
            Op::SsmScan(_) => OpKind::SsmScan,
            Op::GatedGroupNorm { .. } => OpKind::GatedGroupNorm,
            Op::SsmStep { .. } => OpKind::SsmStep,
            Op::Attention(_) => OpKind::Attention,
            Op::MoeRoute(_) => OpKind::MoeRoute,
            Op::MoeMatmul { .. } => OpKind::MoeMatmul,
            Op::MoeCombine { .. } => OpKind::MoeCombine,
            Op::GatherRows => OpKind::GatherRows,
            Op::Choose => OpKind::Choose,
            Op::Quantize(_) => OpKind::Quantize,
        }
    }

    /// How many values the op reads.
    pub fn input_count(&self) -> usize {
        match self {
            Op::Matmul { epilogue: Epilogue::Residual, .. } => 2,
            Op::MoeCombine { residual, .. } => 2 + usize::from(*residual),
            Op::Embed | Op::RmsNorm { .. } | Op::Matmul { .. } | Op::Relu2 | Op::Split { .. } => 1,
            Op::SsmConv(_)
            | Op::SsmDt
            | Op::SsmStep { .. }
            | Op::MoeRoute(_)
            | Op::Choose
            | Op::Quantize(_) => 1,
            Op::Add | Op::Concat | Op::SsmScan(_) | Op::GatedGroupNorm { .. } => 2,
            Op::MoeMatmul { .. } | Op::GatherRows => 2,
            Op::Attention(_) => 3,
        }
    }

    /// The shapes of the op's weights with their use, given its input types, in port order.
    pub fn weight_ports(&self, inputs: &[ValueType]) -> Vec<WeightPort> {
        let vector = |name, shape: Vec<usize>| WeightPort { name, shape, usage: WeightUse::Vector };
        let cols = inputs.first().map_or(0, |v| v.cols);
        match *self {
            // The table's height is the vocabulary, which no activation knows: zero means free.
            Op::Embed => vec![WeightPort { name: "table", shape: vec![0, 0], usage: WeightUse::Table }],
            Op::RmsNorm { .. } | Op::GatedGroupNorm { .. } => vec![vector("weight", vec![cols])],
            Op::Matmul { out, .. } => {
                vec![WeightPort { name: "weight", shape: vec![out, cols], usage: WeightUse::Matrix }]
            }
            Op::MoeMatmul { experts, out, .. } => vec![WeightPort {
                name: "weight",
                shape: vec![experts, out, cols],
                usage: WeightUse::Experts,
            }],
            Op::SsmConv(d) => {
                vec![vector("weight", vec![d.conv_dim(), d.taps]), vector("bias", vec![d.conv_dim()])]
            }
            Op::SsmDt => vec![vector("bias", vec![cols])],
            Op::SsmScan(d) => vec![vector("a", vec![d.heads]), vector("d", vec![d.heads])],
            Op::SsmStep { dims: d, .. } => vec![
                vector("conv_weight", vec![d.conv_dim(), d.taps]),
                vector("conv_bias", vec![d.conv_dim()]),
                vector("dt_bias", vec![d.heads]),
                vector("a", vec![d.heads]),
                vector("d", vec![d.heads]),
                vector("norm", vec![d.inner()]),
            ],
            Op::MoeRoute(r) => vec![vector("bias", vec![r.experts])],
            _ => Vec::new(),
        }
    }

    /// The cache the op needs, if any.
    pub fn cache(&self) -> Option<CacheKind> {
        match self {
            Op::Attention(_) => Some(CacheKind::Kv),
            Op::SsmConv(_) | Op::SsmScan(_) | Op::SsmStep { .. } => Some(CacheKind::State),
            _ => None,
        }
    }
}

/// One weight an op reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPort {
    /// Name of the port, for messages.
    pub name: &'static str,
    /// Expected shape, outermost first; a zero is free.
    pub shape: Vec<usize>,
    /// How the backend holds it.
    pub usage: WeightUse,
}
