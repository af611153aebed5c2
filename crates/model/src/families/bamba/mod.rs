//! Bamba: Mamba-2 or attention, each with an MLP; half of each head is rotated.

use mambo_kernel::{Activation, Attention};

use super::Family;
use super::gguf::{self, Dialect, Multipliers};
use super::reading::{
    activation, attention_dims, depth, epsilon, layer_kinds, layer_numbers, refuse, rope, spec,
};
use super::spelling::{MAMBA, TRANSFORMER};
use super::{falcon_h1, granite};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["bamba"],
    classes: &["BambaForCausalLM"],
    stop_names: &["<|end_of_text|>", "<|endoftext|>"],
    tensors: &[falcon_h1::TENSORS, MAMBA, TRANSFORMER],
    config,
    dialect: DIALECT,
    write_gguf: Some(|spec| ("granitehybrid", gguf::keys(spec, &DIALECT))),
    ..Family::named("bamba")
};

/// Its GGUF files are Granite's, without multipliers.
const DIALECT: Dialect = Dialect { multipliers: Multipliers::InWeights, ..granite::DIALECT };

/// The share of a head that is rotated; published configs do not say.
const PARTIAL: f64 = 0.5;

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    for name in ["attention_bias", "mlp_bias", "mamba_proj_bias"] {
        refuse(fields, name, "a bias in projections")?;
    }
    let dims = attention_dims(fields)?;
    let attention = AttentionSpec {
        attention: Attention::plain(dims),
        rope: Some(rope(fields, dims.head_dim, None, PARTIAL)?),
        ..AttentionSpec::plain(dims)
    };
    let mixer = granite::mamba(fields)?;
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::Silu) };
    let kinds = layer_kinds(fields, &["mamba", "linear_attention", "attention", "full_attention"])?;
    let listed = layer_numbers(fields, "attn_layer_indices")?;
    let is_attention = |index: usize| match (&kinds, &listed) {
        (Some(kinds), _) => kinds[index].ends_with("attention") && kinds[index] != "linear_attention",
        (None, Some(list)) => list.contains(&index),
        (None, None) => false,
    };
    let eps = epsilon(fields, 1e-5)?;
    let layer = |index: usize| {
        let own = if is_attention(index) { Mixer::Attention(attention) } else { Mixer::Mamba2(mixer) };
        LayerSpec::pair(eps, own, Mixer::Mlp(mlp))
    };
    spec(fields, FAMILY.name, (0..depth(fields)?).map(layer).collect())
}
