//! Llama 2 to 3.x and what shares its shape: Mistral, SmolLM2, TinyLlama and many more.

use mambo_kernel::{Activation, RopePairs};

use super::Family;
use super::gguf::{self, Dialect};
use super::reading::{self, activation, attention, depth, epsilon, refuse, spec};
use super::spelling::TRANSFORMER;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, MlpSpec, ModelSpec};

pub(super) static FAMILY: Family = Family {
    model_types: &["llama", "mistral"],
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    gguf: &["llama"],
    stop_names: &["</s>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|im_end|>"],
    tensors: &[TRANSFORMER],
    config,
    dialect: DIALECT,
    read_gguf: Some(|reader| gguf::read(reader, &DIALECT)),
    write_gguf: Some(|spec| ("llama", gguf::keys(spec, &DIALECT))),
    ..Family::named("llama")
};

const DIALECT: Dialect = Dialect { pairs: RopePairs::Neighbours, ..gguf::PLAIN };

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_act"], &["silu", "swish"])?;
    refuse(fields, "mlp_bias", "a bias in the feed-forward part")?;
    let has_bias = fields.flag(&["attention_bias"])?.unwrap_or(false);
    let mut attention = AttentionSpec { qkv_bias: has_bias, o_bias: has_bias, ..attention(fields, None)? };
    attention.attention.window = reading::window(fields)?;
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::Silu) };
    let eps = epsilon(fields, 1e-6)?;
    let layer = LayerSpec::pair(eps, Mixer::Attention(attention), Mixer::Mlp(mlp));
    spec(fields, FAMILY.name, vec![layer; depth(fields)?])
}
