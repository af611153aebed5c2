//! SmolLM3: Llama's layers, of which every fourth, or those that a list names, has no positions.

use mambo_kernel::{Activation, RopePairs};

use super::Family;
use super::gguf::{self, Dialect};
use super::reading::{activation, attention, depth, epsilon, refuse, spec};
use super::spelling::TRANSFORMER;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::gguf::GgufReader;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["smollm3"],
    classes: &["SmolLM3ForCausalLM"],
    gguf: &["smollm3"],
    stop_names: &["<|im_end|>", "<|end_of_text|>"],
    tensors: &[TRANSFORMER],
    config,
    dialect: DIALECT,
    read_gguf: Some(read),
    write_gguf: Some(|spec| ("smollm3", gguf::keys(spec, &DIALECT))),
    ..Family::named("smollm3")
};

const DIALECT: Dialect = Dialect { pairs: RopePairs::Neighbours, ..gguf::PLAIN };

/// Every so many layers one has no positions, where a file does not say; GGUF files never do.
const INTERVAL: usize = 4;
/// Rotary base where a config does not say.
const BASE: f64 = 2_000_000.0;

fn has_positions(index: usize, interval: usize) -> bool {
    !(index + 1).is_multiple_of(interval)
}

fn read(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    let mut spec = gguf::read(reader, &DIALECT)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        for mixer in layer.halves.iter_mut().flat_map(|half| &mut half.mixers) {
            if let Mixer::Attention(own) = mixer {
                own.rope = own.rope.filter(|_| has_positions(index, INTERVAL));
            }
        }
    }
    Ok(spec)
}

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    refuse(fields, "mlp_bias", "a bias in the feed-forward part")?;
    refuse(fields, "use_sliding_window", "a window in layers without positions")?;
    let has_bias = fields.flag(&["attention_bias"])?.unwrap_or(false);
    let mut attention = AttentionSpec { qkv_bias: has_bias, o_bias: has_bias, ..attention(fields, None)? };
    if let Some(rope) = &mut attention.rope
        && fields.get(&["rope_theta", "rope_parameters"]).is_none()
    {
        rope.base = BASE;
    }
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::Silu) };
    let eps = epsilon(fields, 1e-6)?;
    let layer = |is_rotary: bool| {
        let own = AttentionSpec { rope: attention.rope.filter(|_| is_rotary), ..attention };
        LayerSpec::pair(eps, Mixer::Attention(own), Mixer::Mlp(mlp))
    };
    let layers = positions(fields)?.into_iter().map(layer).collect();
    let mut spec = spec(fields, FAMILY.name, layers)?;
    spec.tied_embeddings = fields.flag(&["tie_word_embeddings"])?.unwrap_or(true);
    Ok(spec)
}

/// Which layers have positions. In spite of its name the list has 1 for those that do.
fn positions(fields: &Fields) -> Result<Vec<bool>, ModelError> {
    const INTERVAL_NAME: &str = "no_rope_layer_interval";
    let depth = depth(fields)?;
    let Some((field, list)) = fields.list(&["no_rope_layers"])? else {
        return match fields.size(&[INTERVAL_NAME])?.unwrap_or(INTERVAL) {
            0 => Err(fields.bad(
                INTERVAL_NAME,
                "is 0, but every so many layers have no positions",
                "correct the file",
            )),
            interval => Ok((0..depth).map(|index| has_positions(index, interval)).collect()),
        };
    };
    if list.len() < depth {
        let problem = format!("lists {} layers, but num_hidden_layers is {depth}", list.len());
        return Err(fields.bad(&field, problem, "correct the file"));
    }
    let is_rotary = |(index, value): (usize, &serde_json::Value)| match value.as_u64() {
        Some(flag @ (0 | 1)) => Ok(flag == 1),
        _ => Err(fields.mistyped(&format!("{field}[{index}]"), "1 for positions or 0 for none", value)),
    };
    list.iter().take(depth).enumerate().map(is_rotary).collect()
}
