//! Gemma 3, its text model: local and global layers with a rotary base each, norms before and after each half.

use mambo_kernel::{Activation, Attention, AttentionDims, RopeScaling};

use super::Family;
use super::gguf::{self, Dialect, Multipliers};
use super::reading::{
    self, Sizes, activation, check_heads, depth, epsilon, layer_kinds, of_sizes, refuse, rope,
};
use super::spelling::{TRANSFORMER, Table, names};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::names::Part;
use crate::spec::{AttentionSpec, Factor, Half, LayerSpec, Mixer, MlpSpec, ModelSpec};

static TENSORS: Table = names! {
    PostNorm: "post_attention_layernorm.weight";
    MlpNorm: "pre_feedforward_layernorm.weight";
    MlpPostNorm: "post_feedforward_layernorm.weight";
};

pub(super) static FAMILY: Family = Family {
    model_types: &["gemma3_text"],
    classes: &["Gemma3ForCausalLM"],
    wrappers: &["gemma3", "Gemma3ForConditionalGeneration"],
    gguf: &["gemma3"],
    stop_names: &["<end_of_turn>", "<eos>"],
    tensors: &[TENSORS, TRANSFORMER],
    plus_one: &[
        Part::Norm,
        Part::PostNorm,
        Part::MlpNorm,
        Part::MlpPostNorm,
        Part::FinalNorm,
        Part::QNorm,
        Part::KNorm,
    ],
    config,
    dialect: DIALECT,
    read_gguf: Some(|reader| gguf::read(reader, &DIALECT)),
    write_gguf: Some(|spec| ("gemma3", gguf::keys(spec, &DIALECT))),
    ..Family::named("gemma3")
};

const DIALECT: Dialect = Dialect {
    activation: Activation::GeluTanh,
    global_every: Some(PATTERN),
    local_base: Some(LOCAL_BASE),
    multipliers: Multipliers::RootOfHidden,
    scale,
    ..gguf::PLAIN
};

/// Files do not say, but the largest member has another scale: it is the one with 62 layers.
fn scale(dims: &AttentionDims, hidden: usize, depth: usize) -> f32 {
    match depth {
        62 => 1.0 / ((hidden / dims.q_heads) as f32).sqrt(),
        _ => Attention::plain(*dims).scale,
    }
}

// What the family's software takes where a file does not say.
const HEAD_DIM: usize = 256;
const HEADS: [usize; 2] = [8, 4];
const VOCABULARY: usize = 262_208;
const WINDOW: usize = 4096;
const PATTERN: usize = 6;
const GLOBAL_BASE: f64 = 1e6;
const LOCAL_BASE: f64 = 1e4;

fn config(fields: &Fields) -> Result<ModelSpec, ModelError> {
    activation(fields, &["hidden_activation", "hidden_act"], &["gelu_pytorch_tanh"])?;
    refuse(fields, "attention_bias", "a bias in attention")?;
    refuse(fields, "use_bidirectional_attention", "attention to later tokens")?;
    let hidden = fields.want_size(&["hidden_size"])?;
    let head_dim = fields.size(&["head_dim"])?.unwrap_or(HEAD_DIM);
    let q_heads = fields.size(&["num_attention_heads"])?.unwrap_or(HEADS[0]);
    let kv_heads = fields.size(&["num_key_value_heads"])?.unwrap_or(HEADS[1]);
    check_heads(fields, q_heads, kv_heads)?;
    let dims = AttentionDims { q_heads, kv_heads, head_dim };
    let scalar = fields.positive(&["query_pre_attn_scalar"])?.unwrap_or(HEAD_DIM as f64);
    let soft_cap = fields.positive(&["attn_logit_softcapping"])?.map(|cap| cap as f32);
    let plain = Attention { scale: scalar.powf(-0.5) as f32, soft_cap, ..Attention::plain(dims) };

    let mut global = rope(fields, head_dim, Some("full_attention"), 1.0)?;
    let mut local = rope(fields, head_dim, Some("sliding_attention"), 1.0)?;
    if fields.get(&["rope_parameters"]).is_none() {
        global.base = fields.float(&["rope_theta"])?.unwrap_or(GLOBAL_BASE);
        local.base = fields.float(&["rope_local_base_freq"])?.unwrap_or(LOCAL_BASE);
        local.scaling = RopeScaling::None;
    }
    let window = Some(reading::window(fields)?.unwrap_or(WINDOW));
    let mlp = MlpSpec { width: fields.want_size(&["intermediate_size"])?, gate: Some(Activation::GeluTanh) };
    let eps = epsilon(fields, 1e-6)?;
    let layer = |is_local: &bool| {
        let (window, rope) = if *is_local { (window, local) } else { (None, global) };
        let attention = AttentionSpec {
            attention: Attention { window, ..plain },
            rope: Some(rope),
            qk_norm: true,
            ..AttentionSpec::plain(dims)
        };
        let half = |mixer| Half { mixers: vec![mixer], post_norm: true };
        LayerSpec { norm_eps: eps, halves: vec![half(Mixer::Attention(attention)), half(Mixer::Mlp(mlp))] }
    };
    let layers = local_layers(fields)?.iter().map(layer).collect();
    let vocab = fields.size(&["vocab_size"])?.unwrap_or(VOCABULARY);
    let mut spec = of_sizes(fields, FAMILY.name, Sizes { hidden, vocab, norm_eps: eps }, layers)?;
    spec.tied_embeddings = fields.flag(&["tie_word_embeddings"])?.unwrap_or(true);
    spec.factors = vec![Factor::all(Part::Embed, (hidden as f64).sqrt() as f32)];
    spec.logit_cap = fields.positive(&["final_logit_softcapping"])?.map(|cap| cap as f32);
    Ok(spec)
}

/// Whether each layer is local: listed, or all but every nth.
fn local_layers(fields: &Fields) -> Result<Vec<bool>, ModelError> {
    if let Some(kinds) = layer_kinds(fields, &["full_attention", "sliding_attention"])? {
        return Ok(kinds.iter().map(|kind| *kind == "sliding_attention").collect());
    }
    const NAMES: &[&str] = &["sliding_window_pattern", "_sliding_window_pattern"];
    let pattern = fields.size(NAMES)?.unwrap_or(PATTERN);
    if pattern == 0 {
        return Err(fields.bad(NAMES[0], "is 0", "give the distance between global layers"));
    }
    Ok((1..=depth(fields)?).map(|layer| !layer.is_multiple_of(pattern)).collect())
}
