//! gpt-oss: sinks, local and global layers in turn, clamped gates, biases everywhere, experts in MXFP4.

use mambo_kernel::{Activation, RouteDims, Scoring};

use super::Family;
use super::gguf::{self, Dialect};
use super::reading::{attention, depth, epsilon, experts_per_token, layer_kinds, spec, window};
use super::spelling::{Spelling, StoredRows, TRANSFORMER, Table, whole};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::names::Part;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, ModelSpec, MoeSpec};

const fn rows(rows: StoredRows, name: &'static str) -> Spelling {
    Spelling { name, rows }
}

/// Gate and up stand in one tensor, row by row in turn; unquantised ones are stored transposed.
static TENSORS: Table = &[
    (Part::Router, &[whole("mlp.router.weight")]),
    (Part::RouterOffset, &[whole("mlp.router.bias")]),
    (
        Part::ExpertsGate,
        &[
            rows(StoredRows::Alternate(0), "mlp.experts.gate_up_proj_blocks"),
            rows(StoredRows::AlternateColumns(0), "mlp.experts.gate_up_proj"),
        ],
    ),
    (
        Part::ExpertsUp,
        &[
            rows(StoredRows::Alternate(1), "mlp.experts.gate_up_proj_blocks"),
            rows(StoredRows::AlternateColumns(1), "mlp.experts.gate_up_proj"),
        ],
    ),
    (
        Part::ExpertsDown,
        &[whole("mlp.experts.down_proj_blocks"), rows(StoredRows::Columns, "mlp.experts.down_proj")],
    ),
    (Part::ExpertsGateBias, &[rows(StoredRows::Alternate(0), "mlp.experts.gate_up_proj_bias")]),
    (Part::ExpertsUpBias, &[rows(StoredRows::Alternate(1), "mlp.experts.gate_up_proj_bias")]),
    (Part::ExpertsDownBias, &[whole("mlp.experts.down_proj_bias")]),
];

pub(super) static FAMILY: Family = Family {
    model_types: &["gpt_oss"],
    classes: &["GptOssForCausalLM"],
    gguf: &["gpt-oss"],
    stop_names: &["<|return|>", "<|call|>", "<|endoftext|>"],
    tensors: &[TENSORS, TRANSFORMER],
    gguf_tensors: &[(Part::MlpNorm, &[whole("post_attention_norm.weight")])],
    config,
    dialect: DIALECT,
    read_gguf: Some(|reader| gguf::read(reader, &DIALECT)),
    write_gguf: Some(|spec| ("gpt-oss", gguf::keys(spec, &DIALECT))),
    ..Family::named("gpt_oss")
};

const DIALECT: Dialect = Dialect {
    activation: Activation::ClampedSilu { alpha: ALPHA, limit: LIMIT },
    global_every: Some(2),
    yarn_truncates: false,
    ..gguf::PLAIN
};

/// Steepness of the gate, which files leave out.
const ALPHA: f32 = 1.702;
/// Bound of gate and up, where a file leaves it out.
const LIMIT: f32 = 7.0;

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    let has_bias = fields.flag(&["attention_bias"])?.unwrap_or(true);
    let plain = AttentionSpec { qkv_bias: has_bias, o_bias: has_bias, ..attention(fields, None)? };
    let window = window(fields)?;
    let kinds = layer_kinds(fields, &["full_attention", "sliding_attention"])?;
    let alpha = fields.float(&["swiglu_alpha"])?.map_or(ALPHA, |alpha| alpha as f32);
    let limit = fields.float(&["swiglu_limit"])?.map_or(LIMIT, |limit| limit as f32);
    let experts = fields.want_size(&["num_local_experts", "num_experts"])?;
    let moe = MoeSpec {
        route: RouteDims {
            scoring: Scoring::Softmax,
            experts,
            top_k: experts_per_token(fields, &["num_experts_per_tok", "experts_per_token"], experts)?,
            groups: 1,
            top_groups: 1,
            normalize: true,
            scale: 1.0,
        },
        choice_bias: false,
        biases: true,
        expert_width: fields.want_size(&["intermediate_size"])?,
        gate: Some(Activation::ClampedSilu { alpha, limit }),
        latent: None,
        shared_width: None,
        shared_gate: false,
    };
    let eps = epsilon(fields, 1e-5)?;
    let layer = |index: usize| {
        let is_local = match &kinds {
            Some(kinds) => kinds[index] == "sliding_attention",
            None => index.is_multiple_of(2),
        };
        let mut own = plain;
        own.attention.sinks = true;
        own.attention.window = window.filter(|_| is_local);
        LayerSpec::pair(eps, Mixer::Attention(own), Mixer::Moe(moe))
    };
    spec(fields, FAMILY.name, (0..depth(fields)?).map(layer).collect())
}
