//! How a tensor of a safetensors release is named and how its rows lie, and the names that many families share.

use crate::names::Part;
use crate::spec::Mixer;

/// Names of parts.
pub(crate) type Table = &'static [(Part, &'static [Spelling])];

/// One name of a part.
#[derive(Clone, Copy)]
pub(crate) struct Spelling {
    /// The name inside a layer; `{e}` runs over the experts, which are stacked.
    pub name: &'static str,
    /// Which rows of that tensor are the part's.
    pub rows: StoredRows,
}

/// Which rows of a stored tensor are a weight's. Where experts are stacked this holds for each of them; of vectors it
/// counts elements.
#[derive(Clone, Copy)]
pub(crate) enum StoredRows {
    /// All of them.
    All,
    /// The first or the second half.
    Half(usize),
    /// Every second one, from the first or the second on.
    Alternate(usize),
    /// All columns of a matrix that is stored transposed.
    Columns,
    /// Every second column of a matrix that is stored transposed.
    AlternateColumns(usize),
    /// Pieces that depend on the sizes of the layer and on how many rows are stored; none where all rows are the
    /// weight's.
    Pieces(fn(&Mixer, stored: usize) -> Vec<Pick>),
}

/// Rows `start .. start + count` of every `period` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub period: usize,
    pub start: usize,
    pub count: usize,
}

pub(crate) const fn whole(name: &'static str) -> Spelling {
    Spelling { name, rows: StoredRows::All }
}

pub(crate) const fn half(which: usize, name: &'static str) -> Spelling {
    Spelling { name, rows: StoredRows::Half(which) }
}

/// One whole tensor of this name.
macro_rules! names {
    ($($part:ident: $($name:literal)|+;)*) => {
        &[$((crate::names::Part::$part, &[$(crate::families::spelling::whole($name)),+])),*]
    };
}
pub(crate) use names;

/// What most transformers call things.
pub(crate) static TRANSFORMER: Table = names! {
    Embed: "embed_tokens.weight";
    FinalNorm: "norm.weight";
    Head: "lm_head.weight";
    Norm: "input_layernorm.weight";
    MlpNorm: "post_attention_layernorm.weight";
    Q: "self_attn.q_proj.weight";
    K: "self_attn.k_proj.weight";
    V: "self_attn.v_proj.weight";
    O: "self_attn.o_proj.weight";
    QBias: "self_attn.q_proj.bias";
    KBias: "self_attn.k_proj.bias";
    VBias: "self_attn.v_proj.bias";
    OBias: "self_attn.o_proj.bias";
    QNorm: "self_attn.q_norm.weight";
    KNorm: "self_attn.k_norm.weight";
    Sinks: "self_attn.sinks";
    Up: "mlp.up_proj.weight";
    Gate: "mlp.gate_proj.weight";
    Down: "mlp.down_proj.weight";
    Router: "mlp.gate.weight";
    SharedUp: "mlp.shared_expert.up_proj.weight";
    SharedGate: "mlp.shared_expert.gate_proj.weight";
    SharedDown: "mlp.shared_expert.down_proj.weight";
    SharedRouter: "mlp.shared_expert_gate.weight";
};

/// Experts of the Qwen family: a tensor each, or stacked with gate and up in one.
pub(crate) static EXPERTS: Table = &[
    (Part::ExpertsGate, &[whole("mlp.experts.{e}.gate_proj.weight"), half(0, "mlp.experts.gate_up_proj")]),
    (Part::ExpertsUp, &[whole("mlp.experts.{e}.up_proj.weight"), half(1, "mlp.experts.gate_up_proj")]),
    (Part::ExpertsDown, &[whole("mlp.experts.{e}.down_proj.weight"), whole("mlp.experts.down_proj")]),
];

/// The trunk and the Mamba-2 mixer of the original Mamba-2, whose names Nemotron-H kept.
pub(crate) static ORIGINAL_MAMBA: Table = names! {
    Embed: "embeddings.weight" | "embedding.weight";
    FinalNorm: "norm_f.weight";
    Head: "lm_head.weight";
    Norm: "norm.weight";
    InProj: "mixer.in_proj.weight";
    ConvWeight: "mixer.conv1d.weight";
    ConvBias: "mixer.conv1d.bias";
    DtBias: "mixer.dt_bias";
    A: "mixer.A_log";
    D: "mixer.D";
    SsmNorm: "mixer.norm.weight";
    OutProj: "mixer.out_proj.weight";
};

/// A Mamba-2 mixer under the name `mamba`, as Granite, Bamba and Falcon-H1 have it.
pub(crate) static MAMBA: Table = names! {
    InProj: "mamba.in_proj.weight";
    ConvWeight: "mamba.conv1d.weight";
    ConvBias: "mamba.conv1d.bias";
    DtBias: "mamba.dt_bias";
    A: "mamba.A_log";
    D: "mamba.D";
    SsmNorm: "mamba.norm.weight";
    OutProj: "mamba.out_proj.weight";
};
