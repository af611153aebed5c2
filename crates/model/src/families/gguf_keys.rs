//! The keys of GGUF files of plain transformers, as llama.cpp's converters write them.

use mambo_checkpoint::GgufValue;
use mambo_kernel::RopeScaling;

use crate::spec::{AttentionSpec, Mixer, ModelSpec, MoeSpec};

type Keys = Vec<(&'static str, GgufValue)>;

pub(super) fn llama(spec: &ModelSpec) -> (&'static str, Keys) {
    ("llama", keys(spec))
}

pub(super) fn qwen2(spec: &ModelSpec) -> (&'static str, Keys) {
    ("qwen2", keys(spec))
}

pub(super) fn qwen3(spec: &ModelSpec) -> (&'static str, Keys) {
    let has_experts = spec.mixers().any(|mixer| matches!(mixer, Mixer::Moe(_)));
    (if has_experts { "qwen3moe" } else { "qwen3" }, keys(spec))
}

/// What converters write where a file does not say.
const UNLIMITED_CONTEXT: usize = 1 << 20;

fn keys(spec: &ModelSpec) -> Keys {
    let number = |n: usize| GgufValue::U32(n as u32);
    let mut keys = vec![
        ("block_count", number(spec.layers.len())),
        ("context_length", number(spec.context.unwrap_or(UNLIMITED_CONTEXT))),
        ("embedding_length", number(spec.hidden)),
        ("vocab_size", number(spec.vocab)),
        ("attention.layer_norm_rms_epsilon", spec.norm_eps.into()),
    ];
    // The first of each kind stands for all.
    if let Some(a) =
        spec.mixers().find_map(|mixer| if let Mixer::Attention(a) = mixer { Some(a) } else { None })
    {
        attention(&mut keys, a);
    }
    let mlp = spec.mixers().find_map(|mixer| if let Mixer::Mlp(m) = mixer { Some(m.width) } else { None });
    // Loaders ask for it also where every layer has experts.
    keys.push(("feed_forward_length", number(mlp.unwrap_or(spec.hidden))));
    if let Some(m) = spec.mixers().find_map(|mixer| if let Mixer::Moe(m) = mixer { Some(m) } else { None }) {
        experts(&mut keys, m);
    }
    keys
}

fn attention(keys: &mut Keys, a: &AttentionSpec) {
    let (dims, number) = (a.dims(), |n: usize| GgufValue::U32(n as u32));
    keys.extend([
        ("attention.head_count", number(dims.q_heads)),
        ("attention.head_count_kv", number(dims.kv_heads)),
        ("attention.key_length", number(dims.head_dim)),
        ("attention.value_length", number(dims.head_dim)),
    ]);
    let Some(rope) = a.rope else { return };
    keys.push(("rope.dimension_count", number(rope.rotary)));
    keys.push(("rope.freq_base", GgufValue::F32(rope.base as f32)));
    match rope.scaling {
        // Llama 3 divides its frequencies by a tensor.
        RopeScaling::None | RopeScaling::Llama3 { .. } => {}
        RopeScaling::Linear { factor } => {
            keys.push(("rope.scaling.type", "linear".into()));
            keys.push(("rope.scaling.factor", GgufValue::F32(factor as f32)));
        }
        RopeScaling::Yarn { factor, original, .. } => {
            keys.push(("rope.scaling.type", "yarn".into()));
            keys.push(("rope.scaling.factor", GgufValue::F32(factor as f32)));
            keys.push(("rope.scaling.original_context_length", number(original as usize)));
        }
    }
}

fn experts(keys: &mut Keys, m: &MoeSpec) {
    let number = |n: usize| GgufValue::U32(n as u32);
    keys.extend([
        ("expert_count", number(m.route.experts)),
        ("expert_used_count", number(m.route.top_k)),
        ("expert_feed_forward_length", number(m.expert_width)),
        ("expert_weights_norm", m.route.normalize.into()),
    ]);
}
