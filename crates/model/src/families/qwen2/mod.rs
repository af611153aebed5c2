//! Qwen 2 and 2.5: biases on queries, keys and values; a window in the upper layers where it is switched on.

use mambo_kernel::Activation;

use super::Family;
use super::gguf;
use super::reading::{activation, attention, depth, epsilon, layer_kinds, spec, window};
use super::spelling::TRANSFORMER;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["qwen2"],
    classes: &["Qwen2ForCausalLM"],
    gguf: &["qwen2"],
    stop_names: &["<|im_end|>", "<|endoftext|>"],
    tensors: &[TRANSFORMER],
    config,
    read_gguf: Some(|reader| gguf::read(reader, &gguf::PLAIN)),
    write_gguf: Some(|spec| ("qwen2", gguf::keys(spec, &gguf::PLAIN))),
    ..Family::named("qwen2")
};

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    let attention = AttentionSpec { qkv_bias: true, ..attention(fields, None)? };
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::Silu) };
    let eps = epsilon(fields, 1e-6)?;
    let layer = |window: &Option<usize>| {
        let mut own = attention;
        own.attention.window = *window;
        LayerSpec::pair(eps, Mixer::Attention(own), Mixer::Mlp(mlp))
    };
    spec(fields, FAMILY.name, windows(fields)?.iter().map(layer).collect())
}

/// The window of every layer, as `layer_types` lists them or from `max_window_layers` on.
pub(super) fn windows(fields: &Fields) -> Result<Vec<Option<usize>>, ModelError> {
    let depth = depth(fields)?;
    if !fields.flag(&["use_sliding_window"])?.unwrap_or(false) {
        return Ok(vec![None; depth]);
    }
    let window = window(fields)?;
    let kinds = layer_kinds(fields, &["full_attention", "sliding_attention"])?;
    let first = fields.size(&["max_window_layers"])?.unwrap_or(28);
    let is_local = |index: usize| match &kinds {
        Some(kinds) => kinds[index] == "sliding_attention",
        None => index >= first,
    };
    Ok((0..depth).map(|index| window.filter(|_| is_local(index))).collect())
}
