//! Granite 4: Mamba-2 or attention, each with experts beside a shared MLP or with that alone; four multipliers.

use mambo_kernel::{Activation, Attention, RopePairs, RouteDims, Scoring, SsmDims};

use super::Family;
use super::gguf::{self, Dialect, Keys, Multipliers};
use super::reading::{
    activation, attention_dims, check_groups, epsilon, experts_per_token, layer_kinds, refuse, rope, spec,
};
use super::spelling::{MAMBA, TRANSFORMER, Table, half, whole};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::names::Part;
use crate::spec::{AttentionSpec, Factor, LayerSpec, Mamba2Spec, Mixer, MlpSpec, ModelSpec, MoeSpec};

static TENSORS: Table = &[
    (Part::Gate, &[half(0, "shared_mlp.input_linear.weight")]),
    (Part::Up, &[half(1, "shared_mlp.input_linear.weight")]),
    (Part::Down, &[whole("shared_mlp.output_linear.weight")]),
    (Part::SharedGate, &[half(0, "shared_mlp.input_linear.weight")]),
    (Part::SharedUp, &[half(1, "shared_mlp.input_linear.weight")]),
    (Part::SharedDown, &[whole("shared_mlp.output_linear.weight")]),
    (Part::Router, &[whole("block_sparse_moe.router.layer.weight")]),
    (Part::ExpertsGate, &[half(0, "block_sparse_moe.input_linear.weight")]),
    (Part::ExpertsUp, &[half(1, "block_sparse_moe.input_linear.weight")]),
    (Part::ExpertsDown, &[whole("block_sparse_moe.output_linear.weight")]),
];

pub(super) static FAMILY: Family = Family {
    model_types: &["granitemoehybrid"],
    classes: &["GraniteMoeHybridForCausalLM"],
    gguf: &["granitehybrid", "granite", "granitemoe"],
    stop_names: &["<|end_of_text|>", "<|end_of_role|>"],
    tensors: &[TENSORS, MAMBA, TRANSFORMER],
    config,
    dialect: DIALECT,
    read_gguf: Some(|reader| gguf::read(reader, &DIALECT)),
    write_gguf: Some(write),
    ..Family::named("granite")
};

/// That of Bamba's files too.
pub(super) const DIALECT: Dialect = Dialect {
    pairs: RopePairs::Neighbours,
    multipliers: Multipliers::InKeys,
    has_rope_switch: true,
    lists_kv_heads: true,
    ..gguf::PLAIN
};

/// Members without Mamba-2 have names of their own.
fn write(spec: &ModelSpec) -> (&'static str, Keys) {
    let has = |is: fn(&Mixer) -> bool| spec.mixers().any(is);
    let name = match (has(|m| matches!(m, Mixer::Mamba2(_))), has(|m| matches!(m, Mixer::Moe(_)))) {
        (true, _) => "granitehybrid",
        (false, true) => "granitemoe",
        (false, false) => "granite",
    };
    (name, gguf::keys(spec, &DIALECT))
}

/// Parts that end a residual step: the residual multiplier is theirs.
const LAST: [Part; 5] = [Part::O, Part::OutProj, Part::Down, Part::SharedDown, Part::ExpertsDown];

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    refuse(fields, "mamba_proj_bias", "a bias in the mixer's projections")?;
    let has_bias = fields.flag(&["attention_bias"])?.unwrap_or(false);
    let dims = attention_dims(fields)?;
    const POSITIONS: &str = "position_embedding_type";
    let rope = match fields.text(&[POSITIONS])? {
        Some("rope") => Some(rope(fields, dims.head_dim, None, 1.0)?),
        None | Some("nope") => None,
        Some(other) => {
            let problem = format!("is `{other}`, but only `rope` or `nope` is supported");
            return Err(fields.bad(POSITIONS, problem, "use a checkpoint of the released family"));
        }
    };
    let multiplier = |name| Ok::<_, ModelError>(fields.positive(&[name])?.unwrap_or(1.0) as f32);
    let attention = AttentionSpec {
        attention: Attention { scale: multiplier("attention_multiplier")?, ..Attention::plain(dims) },
        rope,
        qkv_bias: has_bias,
        o_bias: has_bias,
        ..AttentionSpec::plain(dims)
    };
    let kinds = layer_kinds(fields, &["mamba", "linear_attention", "attention", "full_attention"])?;
    let kinds = kinds.ok_or_else(|| fields.missing(&["layer_types", "layers_block_type"]))?;
    let (eps, feed_forward) = (epsilon(fields, 1e-6)?, feed_forward(fields)?);
    let mut layers = Vec::new();
    for kind in kinds {
        let mixer = match kind {
            "attention" | "full_attention" => Mixer::Attention(attention),
            _ => Mixer::Mamba2(mamba(fields)?),
        };
        layers.push(LayerSpec::pair(eps, mixer, feed_forward));
    }
    let mut spec = spec(fields, FAMILY.name, layers)?;
    spec.factors = factors(
        multiplier("embedding_multiplier")?,
        multiplier("residual_multiplier")?,
        multiplier("logits_scaling")?,
    );
    Ok(spec)
}

/// What embeddings and what is added to the residual stream are multiplied with, and what logits are divided by.
pub(super) fn factors(embedding: f32, residual: f32, logits: f32) -> Vec<Factor> {
    let mut factors: Vec<Factor> = LAST.iter().map(|part| Factor::all(*part, residual)).collect();
    factors.push(Factor::all(Part::Embed, embedding));
    factors.push(Factor::all(Part::Head, 1.0 / logits));
    factors
}

/// The mixer's sizes under the names that Granite, Bamba and Falcon-H1 share.
pub(super) fn mamba(fields: &Fields) -> Result<Mamba2Spec, ModelError> {
    let hidden = fields.want_size(&["hidden_size"])?;
    let heads = fields.want_size(&["mamba_n_heads"])?;
    let inner = match fields.size(&["mamba_d_ssm"])? {
        Some(inner) => inner,
        None => hidden.saturating_mul(fields.size(&["mamba_expand"])?.unwrap_or(2)),
    };
    let head_dim = match fields.get(&["mamba_d_head"]).map(|(_, value)| value.is_string()) {
        Some(false) => fields.want_size(&["mamba_d_head"])?,
        // `auto`
        _ => inner / heads.max(1),
    };
    if heads.checked_mul(head_dim) != Some(inner) {
        let problem = format!("is {heads}, which times heads of {head_dim} is not the inner width {inner}");
        return Err(fields.bad("mamba_n_heads", problem, "correct the file"));
    }
    let groups = fields.size(&["mamba_n_groups"])?.unwrap_or(1);
    check_groups(fields, ("mamba_n_groups", groups), ("mamba_n_heads", heads))?;
    let dims = SsmDims {
        heads,
        head_dim,
        state: fields.want_size(&["mamba_d_state"])?,
        groups,
        taps: fields.size(&["mamba_d_conv"])?.unwrap_or(4),
    };
    let conv_bias = fields.flag(&["mamba_conv_bias"])?.unwrap_or(true);
    Ok(Mamba2Spec { dims, norm_groups: Some(groups), conv_bias })
}

fn feed_forward(fields: &Fields) -> Result<Mixer, ModelError> {
    let shared_width = fields.want_size(&["shared_intermediate_size"])?;
    let experts = fields.size(&["num_local_experts"])?.unwrap_or(0);
    let gate = Some(Activation::Silu);
    if experts == 0 {
        return Ok(Mixer::Mlp(MlpSpec { width: shared_width, gate }));
    }
    Ok(Mixer::Moe(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Softmax,
            experts,
            top_k: experts_per_token(fields, &["num_experts_per_tok"], experts)?,
            groups: 1,
            top_groups: 1,
            normalize: true,
            scale: 1.0,
        },
        choice_bias: false,
        biases: false,
        expert_width: fields.want_size(&["intermediate_size"])?,
        gate,
        latent: None,
        shared_width: Some(shared_width),
        shared_gate: false,
    }))
}
