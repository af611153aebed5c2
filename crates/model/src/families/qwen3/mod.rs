//! Qwen 3, dense and with experts: norms of queries and keys, a softmax router.

use mambo_kernel::{Activation, RouteDims, Scoring};

use super::Family;
use super::gguf::{self, Keys};
use super::qwen2::windows;
use super::reading::{activation, attention, epsilon, experts_per_token, layer_numbers, spec};
use super::spelling::{EXPERTS, TRANSFORMER};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec, MoeSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["qwen3", "qwen3_moe"],
    classes: &["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"],
    gguf: &["qwen3", "qwen3moe"],
    stop_names: &["<|im_end|>", "<|endoftext|>"],
    tensors: &[TRANSFORMER, EXPERTS],
    config,
    read_gguf: Some(|reader| gguf::read(reader, &gguf::PLAIN)),
    write_gguf: Some(write),
    ..Family::named("qwen3")
};

fn write(spec: &ModelSpec) -> (&'static str, Keys) {
    let has_experts = spec.mixers().any(|mixer| matches!(mixer, Mixer::Moe(_)));
    (if has_experts { "qwen3moe" } else { "qwen3" }, gguf::keys(spec, &gguf::PLAIN))
}

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    let has_bias = fields.flag(&["attention_bias"])?.unwrap_or(false);
    let attention =
        AttentionSpec { qk_norm: true, qkv_bias: has_bias, o_bias: has_bias, ..attention(fields, None)? };
    let eps = epsilon(fields, 1e-6)?;
    let windows = windows(fields)?;
    let layer = |(index, window): (usize, &Option<usize>)| {
        let mut own = attention;
        own.attention.window = *window;
        Ok(LayerSpec::pair(eps, Mixer::Attention(own), feed_forward(fields, index)?))
    };
    let layers = windows.iter().enumerate().map(layer).collect::<Result<_, ModelError>>()?;
    spec(fields, FAMILY.name, layers)
}

/// Experts, or a dense part in the layers that the file excepts.
pub(super) fn feed_forward(fields: &Fields, index: usize) -> Result<Mixer, ModelError> {
    const EXPERTS: &[&str] = &["num_experts", "num_local_experts"];
    let experts = fields.size(EXPERTS)?.unwrap_or(0);
    let every = fields.size(&["decoder_sparse_step"])?.unwrap_or(1).max(1);
    let excepted = layer_numbers(fields, "mlp_only_layers")?.is_some_and(|layers| layers.contains(&index));
    if experts == 0 || excepted || !(index + 1).is_multiple_of(every) {
        let width = fields.want_size(&["intermediate_size"])?;
        return Ok(Mixer::Mlp(MlpSpec { width, gate: Some(Activation::Silu) }));
    }
    // Members with a shared expert normalise where a file does not say, the others do not.
    let shared_width = fields.size(&["shared_expert_intermediate_size"])?.filter(|width| *width > 0);
    Ok(Mixer::Moe(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Softmax,
            experts,
            top_k: experts_per_token(fields, &["num_experts_per_tok"], experts)?,
            groups: 1,
            top_groups: 1,
            normalize: fields.flag(&["norm_topk_prob"])?.unwrap_or(shared_width.is_some()),
            scale: 1.0,
        },
        choice_bias: false,
        biases: false,
        expert_width: fields.want_size(&["moe_intermediate_size"])?,
        gate: Some(Activation::Silu),
        latent: None,
        shared_width,
        shared_gate: shared_width.is_some(),
    }))
}
