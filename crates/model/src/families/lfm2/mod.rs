//! LFM2: short convolutions and attention in turn, each with an MLP or, in its larger members, with experts.

use mambo_kernel::{Activation, RouteDims, Scoring};

use super::Family;
use super::gguf::{self, Dialect, Keys};
use super::reading::{attention, depth, epsilon, experts_per_token, layer_kinds, layer_numbers, spec};
use super::spelling::{TRANSFORMER, Table, names};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec, MoeSpec};

static TENSORS: Table = names! {
    FinalNorm: "embedding_norm.weight";
    Norm: "operator_norm.weight";
    MlpNorm: "ffn_norm.weight";
    InProj: "conv.in_proj.weight";
    ConvWeight: "conv.conv.weight";
    ConvBias: "conv.conv.bias";
    OutProj: "conv.out_proj.weight";
    O: "self_attn.out_proj.weight";
    QNorm: "self_attn.q_layernorm.weight";
    KNorm: "self_attn.k_layernorm.weight";
    Gate: "feed_forward.w1.weight";
    Up: "feed_forward.w3.weight";
    Down: "feed_forward.w2.weight";
    Router: "feed_forward.gate.weight";
    RouterBias: "feed_forward.expert_bias";
    ExpertsGate: "feed_forward.experts.{e}.w1.weight";
    ExpertsUp: "feed_forward.experts.{e}.w3.weight";
    ExpertsDown: "feed_forward.experts.{e}.w2.weight";
};

static GGUF_TENSORS: Table = names! {
    FinalNorm: "token_embd_norm.weight" | "output_norm.weight";
    InProj: "shortconv.in_proj.weight";
    ConvWeight: "shortconv.conv.weight";
    ConvBias: "shortconv.conv.bias";
    OutProj: "shortconv.out_proj.weight";
};

const DIALECT: Dialect = Dialect { scoring: Scoring::Sigmoid, lists_kv_heads: true, ..gguf::PLAIN };

fn write(spec: &ModelSpec) -> (&'static str, Keys) {
    let has_experts = spec.mixers().any(|mixer| matches!(mixer, Mixer::Moe(_)));
    (if has_experts { "lfm2moe" } else { "lfm2" }, gguf::keys(spec, &DIALECT))
}

pub(super) static FAMILY: Family = Family {
    model_types: &["lfm2", "lfm2_moe"],
    classes: &["Lfm2ForCausalLM", "Lfm2MoeForCausalLM"],
    gguf: &["lfm2", "lfm2moe"],
    stop_names: &["<|im_end|>", "<|endoftext|>"],
    tensors: &[TENSORS, TRANSFORMER],
    gguf_tensors: GGUF_TENSORS,
    config,
    dialect: DIALECT,
    read_gguf: Some(|reader| gguf::read(reader, &DIALECT)),
    write_gguf: Some(write),
    ..Family::named("lfm2")
};

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    let attention = AttentionSpec { qk_norm: true, ..attention(fields, None)? };
    let conv = Mixer::ShortConv {
        taps: fields.size(&["conv_L_cache"])?.unwrap_or(3),
        has_bias: fields.flag(&["conv_bias"])?.unwrap_or(false),
    };
    let kinds = layer_kinds(fields, &["conv", "full_attention"])?;
    let listed = layer_numbers(fields, "full_attn_idxs")?;
    let is_attention = |index: usize| match (&kinds, &listed) {
        (Some(kinds), _) => kinds[index] == "full_attention",
        (None, Some(list)) => list.contains(&index),
        (None, None) => true,
    };
    let eps = epsilon(fields, 1e-5)?;
    let dense = fields.size(&["num_dense_layers"])?.unwrap_or(0);
    let mut layers = Vec::new();
    for index in 0..depth(fields)? {
        let mixer = if is_attention(index) { Mixer::Attention(attention) } else { conv };
        let has_experts = fields.get(&["num_experts"]).is_some() && index >= dense;
        let feed_forward = if has_experts { experts(fields)? } else { mlp(fields)? };
        layers.push(LayerSpec::pair(eps, mixer, feed_forward));
    }
    let mut spec = spec(fields, FAMILY.name, layers)?;
    spec.norm_eps = eps;
    spec.tied_embeddings = fields.flag(&["tie_word_embeddings", "tie_embedding"])?.unwrap_or(true);
    Ok(spec)
}

fn mlp(fields: &Fields) -> Result<Mixer, ModelError> {
    let mut width = fields.want_size(&["intermediate_size", "block_ff_dim"])?;
    if fields.flag(&["block_auto_adjust_ff_dim"])?.unwrap_or(false) {
        width = width.saturating_mul(2) / 3;
        if let Some(multiplier) = fields.float(&["block_ffn_dim_multiplier"])? {
            width = (multiplier * width as f64) as usize;
        }
        let multiple = fields.size(&["block_multiple_of"])?.unwrap_or(256).max(1);
        // What no number holds is refused with all sizes beyond reason.
        width = width.checked_next_multiple_of(multiple).unwrap_or(usize::MAX);
    }
    Ok(Mixer::Mlp(MlpSpec { width, gate: Some(Activation::Silu) }))
}

fn experts(fields: &Fields) -> Result<Mixer, ModelError> {
    let experts = fields.want_size(&["num_experts"])?;
    Ok(Mixer::Moe(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Sigmoid,
            experts,
            top_k: experts_per_token(fields, &["num_experts_per_tok"], experts)?,
            groups: 1,
            top_groups: 1,
            normalize: fields.flag(&["norm_topk_prob"])?.unwrap_or(true),
            scale: fields.float(&["routed_scaling_factor"])?.unwrap_or(1.0) as f32,
        },
        choice_bias: fields.flag(&["use_expert_bias"])?.unwrap_or(true),
        biases: false,
        expert_width: fields.want_size(&["moe_intermediate_size"])?,
        gate: Some(Activation::Silu),
        latent: None,
        shared_width: None,
        shared_gate: false,
    }))
}
