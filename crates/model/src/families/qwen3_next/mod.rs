//! Qwen3-Next and Qwen 3.5: gated delta nets with gated attention in between; experts with a gated shared one, or an
//! MLP.

use mambo_kernel::{Attention, SsmDims};

mod gguf_form;

use super::Family;
use super::qwen3::feed_forward;
use super::reading::{
    activation, attention_dims, check_groups, depth, epsilon, layer_kinds, refuse, rope, spec,
};
use super::spelling::{EXPERTS, Pick, Spelling, StoredRows, TRANSFORMER, Table, whole};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::names::Part;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, ModelSpec};

const fn pieces(name: &'static str, pieces: fn(&Mixer, usize) -> Vec<Pick>) -> Spelling {
    Spelling { name, rows: StoredRows::Pieces(pieces) }
}

/// Qwen3-Next joins its projections key head by key head, Qwen 3.5 has them apart; both join queries and gates head by
/// head.
static TENSORS: Table = &[
    (
        Part::DeltaQkv,
        &[
            whole("linear_attn.in_proj_qkv.weight"),
            pieces("linear_attn.in_proj_qkvz.weight", |mixer, _| group_pieces(mixer)[..3].to_vec()),
        ],
    ),
    (
        Part::DeltaZ,
        &[
            whole("linear_attn.in_proj_z.weight"),
            pieces("linear_attn.in_proj_qkvz.weight", |mixer, _| group_pieces(mixer)[3..].to_vec()),
        ],
    ),
    (
        Part::DeltaStrength,
        &[
            whole("linear_attn.in_proj_b.weight"),
            pieces("linear_attn.in_proj_ba.weight", |mixer, _| vec![gate_piece(mixer, 0)]),
        ],
    ),
    (
        Part::DeltaDecay,
        &[
            whole("linear_attn.in_proj_a.weight"),
            pieces("linear_attn.in_proj_ba.weight", |mixer, _| vec![gate_piece(mixer, 1)]),
        ],
    ),
    (Part::ConvWeight, &[whole("linear_attn.conv1d.weight")]),
    (Part::DtBias, &[whole("linear_attn.dt_bias")]),
    (Part::A, &[whole("linear_attn.A_log")]),
    (Part::SsmNorm, &[whole("linear_attn.norm.weight")]),
    (Part::OutProj, &[whole("linear_attn.out_proj.weight")]),
    (Part::Q, &[pieces("self_attn.q_proj.weight", |mixer, _| vec![head_piece(mixer, 0)])]),
    (Part::QGate, &[pieces("self_attn.q_proj.weight", |mixer, _| vec![head_piece(mixer, 1)])]),
];

pub(super) static FAMILY: Family = Family {
    model_types: &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"],
    classes: &["Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"],
    wrappers: &[
        "qwen3_5",
        "qwen3_5_moe",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    gguf: &["qwen3next", "qwen35", "qwen35moe"],
    stop_names: &["<|im_end|>", "<|endoftext|>"],
    tensors: &[TENSORS, TRANSFORMER, EXPERTS],
    plus_one: &[Part::Norm, Part::MlpNorm, Part::FinalNorm, Part::QNorm, Part::KNorm],
    config,
    gguf_tensors: gguf_form::TENSORS,
    dialect: gguf_form::NEXT,
    arrange: gguf_form::arrange,
    read_gguf: Some(gguf_form::read),
    write_gguf: Some(gguf_form::write),
    ..Family::named("qwen3_next")
};

/// q, k, v and z of one key head.
fn group_pieces(mixer: &Mixer) -> [Pick; 4] {
    let Mixer::DeltaNet(d) = mixer else { return [Pick { period: 1, start: 0, count: 1 }; 4] };
    let values = d.heads / d.groups * d.head_dim;
    let counts = [d.state, d.state, values, values];
    let period = counts.iter().sum();
    let mut start = 0;
    counts.map(|count| {
        let pick = Pick { period, start, count };
        start += count;
        pick
    })
}

/// Strengths or decays of one key head.
fn gate_piece(mixer: &Mixer, which: usize) -> Pick {
    let Mixer::DeltaNet(d) = mixer else { return Pick { period: 2, start: which, count: 1 } };
    let count = d.heads / d.groups;
    Pick { period: 2 * count, start: which * count, count }
}

/// Queries or gates of one head.
fn head_piece(mixer: &Mixer, which: usize) -> Pick {
    let Mixer::Attention(a) = mixer else { return Pick { period: 2, start: which, count: 1 } };
    let count = a.dims().head_dim;
    Pick { period: 2 * count, start: which * count, count }
}

/// The share of a head that is rotated where a file does not say.
const PARTIAL: f64 = 0.25;
/// Every nth layer is attention where a file does not list them.
const INTERVAL: usize = 4;

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    refuse(fields, "attention_bias", "a bias in attention")?;
    let dims = attention_dims(fields)?;
    let attention = AttentionSpec {
        attention: Attention::plain(dims),
        rope: Some(rope(fields, dims.head_dim, None, PARTIAL)?),
        qk_norm: true,
        gated: true,
        ..AttentionSpec::plain(dims)
    };
    let delta = SsmDims {
        heads: fields.want_size(&["linear_num_value_heads"])?,
        head_dim: fields.want_size(&["linear_value_head_dim"])?,
        state: fields.want_size(&["linear_key_head_dim"])?,
        groups: fields.want_size(&["linear_num_key_heads"])?,
        taps: fields.size(&["linear_conv_kernel_dim"])?.unwrap_or(4),
    };
    check_groups(fields, ("linear_num_key_heads", delta.groups), ("linear_num_value_heads", delta.heads))?;
    let kinds = layer_kinds(fields, &["linear_attention", "full_attention"])?;
    let interval = fields.size(&["full_attention_interval"])?.unwrap_or(INTERVAL).max(1);
    let is_attention = |index: usize| match &kinds {
        Some(kinds) => kinds[index] == "full_attention",
        None => (index + 1).is_multiple_of(interval),
    };
    let eps = epsilon(fields, 1e-6)?;
    let mut layers = Vec::new();
    for index in 0..depth(fields)? {
        let mixer = if is_attention(index) { Mixer::Attention(attention) } else { Mixer::DeltaNet(delta) };
        layers.push(LayerSpec::pair(eps, mixer, feed_forward(fields, index)?));
    }
    spec(fields, FAMILY.name, layers)
}
