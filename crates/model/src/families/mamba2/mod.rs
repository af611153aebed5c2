//! Mamba-2 alone, in the spelling of transformers and in the original one.

use mambo_kernel::SsmDims;
use serde_json::Value;

use super::Family;
use super::gguf;
use super::reading::{Sizes, check_groups, of_sizes, refuse};
use super::spelling::ORIGINAL_MAMBA;
use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{LayerSpec, Mamba2Spec, Mixer, ModelSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["mamba2"],
    classes: &["Mamba2ForCausalLM"],
    gguf: &["mamba2"],
    stop_names: &["<|endoftext|>"],
    tensors: &[ORIGINAL_MAMBA],
    recognises: is_original,
    config,
    read_gguf: Some(|reader| gguf::read(reader, &gguf::PLAIN)),
    write_gguf: Some(|spec| ("mamba2", gguf::keys(spec, &gguf::PLAIN))),
    ..Family::named("mamba2")
};

/// The original configs name their layers and nothing else.
fn is_original(fields: &Fields) -> bool {
    let layer = fields.get(&["ssm_cfg"]).and_then(|(_, value)| value.get("layer").and_then(Value::as_str));
    layer == Some("Mamba2")
}

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    refuse(fields, "use_bias", "a bias in projections")?;
    if fields.size(&["d_intermediate"])?.unwrap_or(0) > 0 {
        let problem = "is above 0, but layers with an MLP are not supported here";
        return Err(fields.bad("d_intermediate", problem, "use a model of Mamba-2 layers alone"));
    }
    if fields.list(&["attn_layer_idx"])?.is_some_and(|(_, list)| !list.is_empty()) {
        let problem = "lists attention layers, which are not supported here";
        return Err(fields.bad("attn_layer_idx", problem, "use a model of Mamba-2 layers alone"));
    }
    let own = fields.get(&["ssm_cfg"]).and_then(|(_, value)| value.as_object());
    let own = own.map_or(*fields, |map| fields.overridden("ssm_cfg.", map));
    let hidden = fields.want_size(&["hidden_size", "d_model"])?;
    let expand = own.size(&["expand"])?.unwrap_or(2);
    let head_dim = own.size(&["head_dim", "headdim"])?.unwrap_or(64);
    let inner = hidden.saturating_mul(expand);
    if head_dim == 0 || !inner.is_multiple_of(head_dim) {
        let problem = format!("is {head_dim}, which does not divide the inner width {inner}");
        return Err(fields.bad("head_dim", problem, "correct the file"));
    }
    let heads = own.size(&["num_heads"])?.unwrap_or(inner / head_dim);
    if heads.checked_mul(head_dim) != Some(inner) {
        let problem = format!("is {heads}, which times heads of {head_dim} is not the inner width {inner}");
        return Err(own.bad("num_heads", problem, "correct the file"));
    }
    let groups = own.size(&["n_groups", "ngroups"])?.unwrap_or(1);
    check_groups(&own, ("n_groups", groups), ("num_heads", heads))?;
    let dims = SsmDims {
        heads,
        head_dim,
        state: own.size(&["state_size", "d_state"])?.unwrap_or(128),
        groups,
        taps: own.size(&["conv_kernel", "d_conv"])?.unwrap_or(4),
    };
    let conv_bias = own.flag(&["use_conv_bias", "conv_bias"])?.unwrap_or(true);
    let mixer = Mamba2Spec { dims, norm_groups: Some(groups), conv_bias };
    let eps = fields.float(&["layer_norm_epsilon"])?.unwrap_or(1e-5) as f32;
    let depth = fields.want_size(&["num_hidden_layers", "n_layer"])?;
    if depth > MAX_LAYERS {
        return Err(fields.bad("n_layer", format!("is {depth}, more than {MAX_LAYERS}"), "correct the file"));
    }
    // The original code pads the vocabulary; the rows are there and have logits.
    let padded = fields.size(&["pad_vocab_size_multiple"])?.unwrap_or(1).max(1);
    // What no number holds is refused with all sizes beyond reason.
    let vocab = fields.want_size(&["vocab_size"])?.checked_next_multiple_of(padded).unwrap_or(usize::MAX);
    let layers = vec![LayerSpec::of(eps, Mixer::Mamba2(mixer)); depth];
    let mut spec = of_sizes(fields, FAMILY.name, Sizes { hidden, vocab, norm_eps: eps }, layers)?;
    spec.tied_embeddings = fields.flag(&["tie_word_embeddings", "tie_embeddings"])?.unwrap_or(true);
    Ok(spec)
}
