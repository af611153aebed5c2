//! The op vocabulary: mathematical nouns with their parameters, and how types flow through them.
//!
//! An op defines *what* is computed; each has its formula, reference and hard cases in `ops/<name>.rs`.
//! How it is computed is up to the backend.

use crate::dims::{Activation, Attention, RouteDims, SsmDims};
use crate::rope::Rope;
use crate::value::{Elem, ValueType};

/// What a matmul does with each product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// `max(y, 0)²`.
    Relu2,
    /// Adds the matching element of a second input.
    Residual,
    /// `activation(G·x) · y`, where the gate G is a second weight of the same shape.
    Glu(Activation),
}

impl Epilogue {
    /// The weights that are multiplied with the input: the product's own, and a gate.
    pub fn products(self) -> impl Iterator<Item = &'static str> {
        let gate = matches!(self, Epilogue::Glu(_)).then_some("gate");
        std::iter::once("weight").chain(gate)
    }
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
    /// Mean taken away, divided by the deviation, times a weight vector, plus a bias vector; over a row.
    LayerNorm {
        /// Added to the variance inside the root.
        eps: f32,
    },
    /// `rms_norm` of every head of a row, all with one weight vector.
    HeadNorm {
        /// Channels per head.
        head_dim: usize,
        /// Added to the mean square inside the root.
        eps: f32,
    },
    /// Rotary positions: pairs of channels of every head are rotated by an angle that grows with the position.
    Rope(Rope),
    /// `W·x` for every row; inputs x and, with [`Epilogue::Residual`], the residual; weights W and, with
    /// [`Epilogue::Glu`], the gate.
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
    /// Element-wise `activation(gate) · x`; inputs gate and x.
    Glu(Activation),
    /// A vector added to every row.
    Bias,
    /// `cap · tanh(x / cap)`, element by element.
    SoftCap {
        /// The bound.
        cap: f32,
    },
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
    /// LFM2's gated convolution: `c · conv(b · x)` with the input `[b c x]`, causal and depthwise with bias. Its sizes
    /// are one head without a state.
    ShortConv(SsmDims),
    /// The gated delta rule; inputs q, k and v side by side (after convolution), the raw write strengths and the raw
    /// decays. Heads are those of v, groups those of q and k; the state's rows are channels of k.
    DeltaScan(SsmDims),
    /// Causal grouped-query attention; inputs q, k and v; appends k and v to the cache first.
    Attention(Attention),
    /// Router; input logits, outputs expert ids and their weights.
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
    /// Adds the bias vector of its expert to every (token, chosen expert); inputs rows and expert ids.
    MoeBias {
        /// Experts in the weight.
        experts: usize,
        /// Experts per token.
        top_k: usize,
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
    LayerNorm,
    HeadNorm,
    Rope,
    Matmul,
    Add,
    Relu2,
    Glu,
    Bias,
    SoftCap,
    Split,
    Concat,
    SsmConv,
    SsmDt,
    SsmScan,
    GatedGroupNorm,
    SsmStep,
    ShortConv,
    DeltaScan,
    Attention,
    MoeRoute,
    MoeMatmul,
    MoeCombine,
    MoeBias,
    GatherRows,
    Choose,
    Quantize,
}

impl OpKind {
    /// Every kind, in the order of the vocabulary.
    pub const ALL: [OpKind; 28] = [
        OpKind::Embed,
        OpKind::RmsNorm,
        OpKind::LayerNorm,
        OpKind::HeadNorm,
        OpKind::Rope,
        OpKind::Matmul,
        OpKind::Add,
        OpKind::Relu2,
        OpKind::Glu,
        OpKind::Bias,
        OpKind::SoftCap,
        OpKind::Split,
        OpKind::Concat,
        OpKind::SsmConv,
        OpKind::SsmDt,
        OpKind::SsmScan,
        OpKind::GatedGroupNorm,
        OpKind::SsmStep,
        OpKind::ShortConv,
        OpKind::DeltaScan,
        OpKind::Attention,
        OpKind::MoeRoute,
        OpKind::MoeMatmul,
        OpKind::MoeCombine,
        OpKind::MoeBias,
        OpKind::GatherRows,
        OpKind::Choose,
        OpKind::Quantize,
    ];

    /// Element types of the inputs, in port order; optional ports count.
    pub fn input_elems(self) -> &'static [Elem] {
        match self {
            OpKind::Embed => &[Elem::I32],
            OpKind::MoeMatmul | OpKind::MoeBias | OpKind::GatherRows => &[Elem::F32, Elem::I32],
            OpKind::Attention | OpKind::DeltaScan | OpKind::MoeCombine => &[Elem::F32; 3],
            OpKind::Matmul
            | OpKind::Add
            | OpKind::Glu
            | OpKind::Concat
            | OpKind::SsmScan
            | OpKind::GatedGroupNorm => &[Elem::F32; 2],
            _ => &[Elem::F32],
        }
    }

    /// The stem used in graphs, plans, kernel rows and file names.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::RmsNorm => "rms_norm",
            OpKind::LayerNorm => "layer_norm",
            OpKind::HeadNorm => "head_norm",
            OpKind::Rope => "rope",
            OpKind::Matmul => "matmul",
            OpKind::Add => "add",
            OpKind::Relu2 => "relu2",
            OpKind::Glu => "glu",
            OpKind::Bias => "bias",
            OpKind::SoftCap => "soft_cap",
            OpKind::Split => "split",
            OpKind::Concat => "concat",
            OpKind::SsmConv => "ssm_conv",
            OpKind::SsmDt => "ssm_dt",
            OpKind::SsmScan => "ssm_scan",
            OpKind::GatedGroupNorm => "gated_group_norm",
            OpKind::SsmStep => "ssm_step",
            OpKind::ShortConv => "short_conv",
            OpKind::DeltaScan => "delta_scan",
            OpKind::Attention => "attention",
            OpKind::MoeRoute => "moe_route",
            OpKind::MoeMatmul => "moe_matmul",
            OpKind::MoeCombine => "moe_combine",
            OpKind::MoeBias => "moe_bias",
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
            Op::LayerNorm { .. } => OpKind::LayerNorm,
            Op::HeadNorm { .. } => OpKind::HeadNorm,
            Op::Rope(_) => OpKind::Rope,
            Op::Matmul { .. } => OpKind::Matmul,
            Op::Add => OpKind::Add,
            Op::Relu2 => OpKind::Relu2,
            Op::Glu(_) => OpKind::Glu,
            Op::Bias => OpKind::Bias,
            Op::SoftCap { .. } => OpKind::SoftCap,
            Op::Split { .. } => OpKind::Split,
            Op::Concat => OpKind::Concat,
            Op::SsmConv(_) => OpKind::SsmConv,
            Op::SsmDt => OpKind::SsmDt,
            Op::SsmScan(_) => OpKind::SsmScan,
            Op::GatedGroupNorm { .. } => OpKind::GatedGroupNorm,
            Op::SsmStep { .. } => OpKind::SsmStep,
            Op::ShortConv(_) => OpKind::ShortConv,
            Op::DeltaScan(_) => OpKind::DeltaScan,
            Op::Attention(_) => OpKind::Attention,
            Op::MoeRoute(_) => OpKind::MoeRoute,
            Op::MoeMatmul { .. } => OpKind::MoeMatmul,
            Op::MoeCombine { .. } => OpKind::MoeCombine,
            Op::MoeBias { .. } => OpKind::MoeBias,
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
            Op::Embed | Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::HeadNorm { .. } | Op::Rope(_) => 1,
            Op::Matmul { .. } | Op::Relu2 | Op::Bias | Op::SoftCap { .. } | Op::Split { .. } => 1,
            Op::ShortConv(_)
            | Op::SsmConv(_)
            | Op::SsmDt
            | Op::SsmStep { .. }
            | Op::MoeRoute(_)
            | Op::Choose
            | Op::Quantize(_) => 1,
            Op::Add | Op::Glu(_) | Op::Concat | Op::SsmScan(_) | Op::GatedGroupNorm { .. } => 2,
            Op::MoeMatmul { .. } | Op::MoeBias { .. } | Op::GatherRows => 2,
            Op::Attention(_) | Op::DeltaScan(_) => 3,
        }
    }

    /// The shapes of the op's weights with their use, given its input types, in port order.
    pub fn weight_ports(&self, inputs: &[ValueType]) -> Vec<WeightPort> {
        let vector = |name, shape: Vec<usize>| WeightPort { name, shape, usage: WeightUse::Vector };
        let matrix = |name, shape: Vec<usize>, usage| WeightPort { name, shape, usage };
        let cols = inputs.first().map_or(0, |v| v.cols);
        match *self {
            // The table's height is the vocabulary, which no activation knows: zero means free.
            Op::Embed => vec![WeightPort { name: "table", shape: vec![0, 0], usage: WeightUse::Table }],
            Op::RmsNorm { .. } | Op::GatedGroupNorm { .. } => vec![vector("weight", vec![cols])],
            Op::LayerNorm { .. } => vec![vector("weight", vec![cols]), vector("bias", vec![cols])],
            Op::HeadNorm { head_dim, .. } => vec![vector("weight", vec![head_dim])],
            Op::Rope(r) if r.has_factors => vec![vector("factors", vec![r.rotary / 2])],
            Op::Bias => vec![vector("bias", vec![cols])],
            Op::MoeBias { experts, .. } => vec![vector("bias", vec![experts, cols])],
            Op::Attention(a) if a.sinks => vec![vector("sinks", vec![a.dims.q_heads])],
            Op::Matmul { out, epilogue } => {
                epilogue.products().map(|name| matrix(name, vec![out, cols], WeightUse::Matrix)).collect()
            }
            Op::MoeMatmul { experts, out, epilogue, .. } => epilogue
                .products()
                .map(|name| matrix(name, vec![experts, out, cols], WeightUse::Experts))
                .collect(),
            Op::SsmConv(d) | Op::ShortConv(d) => {
                vec![vector("weight", vec![d.conv_dim(), d.taps]), vector("bias", vec![d.conv_dim()])]
            }
            Op::SsmDt => vec![vector("bias", vec![cols])],
            Op::SsmScan(d) => vec![vector("a", vec![d.heads]), vector("d", vec![d.heads])],
            Op::DeltaScan(d) => vec![vector("a", vec![d.heads]), vector("dt_bias", vec![d.heads])],
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
            Op::SsmConv(_) | Op::SsmScan(_) | Op::SsmStep { .. } | Op::ShortConv(_) | Op::DeltaScan(_) => {
                Some(CacheKind::State)
            }
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
