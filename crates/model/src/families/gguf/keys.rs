//! The keys of a file that is written, in the words of llama.cpp's converters.

use mambo_checkpoint::GgufValue;
use mambo_kernel::{Activation, Rope, RopeScaling};

use super::mixers::SCORINGS;
use super::{Dialect, Keys, Multipliers, UNLIMITED_CONTEXT};
use crate::names::Part;
use crate::spec::{AttentionSpec, LayerSpec, Mixer, ModelSpec, MoeSpec};

/// Everything about a model that its tensors do not say.
pub(crate) fn keys(spec: &ModelSpec, dialect: &Dialect) -> Keys {
    let mut keys = vec![
        ("block_count", number(spec.layers.len())),
        ("context_length", number(spec.context.unwrap_or(UNLIMITED_CONTEXT))),
        ("embedding_length", number(spec.hidden)),
        ("vocab_size", number(spec.vocab)),
        ("attention.layer_norm_rms_epsilon", spec.norm_eps.into()),
    ];
    keys.extend(spec.logit_cap.map(|cap| ("final_logit_softcapping", cap.into())));
    attention(&mut keys, spec, dialect);
    feed_forward(&mut keys, spec);
    if let Some(m) = spec.mixers().find_map(|mixer| if let Mixer::Moe(m) = mixer { Some(m) } else { None }) {
        experts(&mut keys, spec, m, dialect);
    }
    recurrent(&mut keys, spec, dialect);
    if dialect.multipliers == Multipliers::InKeys {
        multipliers(&mut keys, spec);
    }
    keys
}

fn number(n: usize) -> GgufValue {
    GgufValue::U32(n as u32)
}

fn own_attention(layer: &LayerSpec) -> Option<&AttentionSpec> {
    layer.mixers().find_map(|mixer| if let Mixer::Attention(a) = mixer { Some(a) } else { None })
}

/// One layer stands for all in keys that are given once; a global one where there are windows.
fn attention(keys: &mut Keys, spec: &ModelSpec, dialect: &Dialect) {
    let all = || spec.layers.iter().filter_map(own_attention);
    let is_local = |a: &&AttentionSpec| a.attention.window.is_some();
    let Some(a) = all().find(|a| !is_local(a)).or_else(|| all().next()) else {
        // Loaders ask for it.
        keys.push(("attention.head_count", number(0)));
        return;
    };
    let dims = a.dims();
    let kv_heads = match dialect.lists_kv_heads {
        true => {
            let of = |layer| own_attention(layer).map_or(0, |a| a.dims().kv_heads as i32);
            spec.layers.iter().map(of).collect::<Vec<i32>>().into()
        }
        false => number(dims.kv_heads),
    };
    keys.extend([
        ("attention.head_count", number(dims.q_heads)),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", number(dims.head_dim)),
        ("attention.value_length", number(dims.head_dim)),
    ]);
    if a.attention.scale != (dialect.scale)(&dims, spec.hidden, spec.layers.len()) {
        keys.push(("attention.scale", a.attention.scale.into()));
    }
    keys.extend(a.attention.soft_cap.map(|cap| ("attn_logit_softcapping", cap.into())));
    if dialect.has_rope_switch {
        keys.push(("rope.scaling.finetuned", a.rope.is_some().into()));
    }
    keys.push(("rope.dimension_count", number(a.rope.map_or(dims.head_dim, |rope| rope.rotary))));
    if let Some(rope) = a.rope {
        keys.push(("rope.freq_base", GgufValue::F32(rope.base as f32)));
        stretched(keys, rope);
    }
    if let Some(local) = all().find(is_local) {
        windows(keys, spec, a, local, dialect);
    }
}

fn stretched(keys: &mut Keys, rope: Rope) {
    let mut float = |key, value: f64| keys.push((key, GgufValue::F32(value as f32)));
    let (kind, original) = match rope.scaling {
        // Llama 3 divides its frequencies by a tensor.
        RopeScaling::None | RopeScaling::Llama3 { .. } => return,
        RopeScaling::Linear { factor } => {
            float("rope.scaling.factor", factor);
            ("linear", None)
        }
        RopeScaling::Yarn { factor, original, fast, slow, magnitude, .. } => {
            float("rope.scaling.factor", factor);
            float("rope.scaling.yarn_beta_fast", fast);
            float("rope.scaling.yarn_beta_slow", slow);
            let usual = Rope::yarn_magnitude(factor);
            if magnitude != usual {
                float("rope.scaling.attn_factor", magnitude / usual);
            }
            ("yarn", Some(original))
        }
    };
    keys.push(("rope.scaling.type", kind.into()));
    keys.extend(original.map(|n| ("rope.scaling.original_context_length", number(n as usize))));
}

fn windows(
    keys: &mut Keys,
    spec: &ModelSpec,
    global: &AttentionSpec,
    local: &AttentionSpec,
    dialect: &Dialect,
) {
    let is_local = |layer| own_attention(layer).is_some_and(|a| a.attention.window.is_some());
    let listed: Vec<bool> = spec.layers.iter().map(is_local).collect();
    keys.push(("attention.sliding_window", number(local.attention.window.unwrap_or(0))));
    keys.push(("attention.sliding_window_pattern", listed.into()));
    if let (Some(global), Some(local)) = (global.rope, local.rope)
        && (global.base != local.base || dialect.local_base.is_some())
    {
        keys.push(("rope.freq_base_swa", GgufValue::F32(local.base as f32)));
    }
}

fn feed_forward(keys: &mut Keys, spec: &ModelSpec) {
    let width = |mixer: &Mixer| match mixer {
        Mixer::Mlp(m) => Some(m.width),
        _ => None,
    };
    let of_expert = |mixer: &Mixer| match mixer {
        Mixer::Moe(m) => Some(m.expert_width),
        _ => None,
    };
    // Loaders ask for it in every model; some take it for the width of experts.
    let width = spec.mixers().find_map(width).or_else(|| spec.mixers().find_map(of_expert));
    keys.push(("feed_forward_length", number(width.unwrap_or(0))));
}

fn experts(keys: &mut Keys, spec: &ModelSpec, m: &MoeSpec, dialect: &Dialect) {
    let gating = SCORINGS.iter().find(|(_, scoring)| *scoring == m.route.scoring).expect("all are listed");
    keys.extend([
        ("expert_count", number(m.route.experts)),
        ("expert_used_count", number(m.route.top_k)),
        ("expert_feed_forward_length", number(m.expert_width)),
        ("expert_gating_func", number(gating.0 as usize)),
        ("expert_weights_norm", m.route.normalize.into()),
    ]);
    if m.route.scale != 1.0 {
        keys.push(("expert_weights_scale", m.route.scale.into()));
    }
    keys.extend(m.shared_width.map(|width| ("expert_shared_feed_forward_length", number(width))));
    let has_experts = |layer: &LayerSpec| layer.mixers().any(|mixer| matches!(mixer, Mixer::Moe(_)));
    let dense = spec.layers.iter().take_while(|layer| !has_experts(layer)).count();
    if dense > 0 {
        keys.push(("leading_dense_block_count", number(dense)));
    }
    if let Some(Activation::ClampedSilu { limit, .. }) = m.gate
        && m.gate != Some(dialect.activation)
    {
        keys.push(("swiglu_clamp_exp", vec![limit; spec.layers.len()].into()));
    }
}

fn recurrent(keys: &mut Keys, spec: &ModelSpec, dialect: &Dialect) {
    let taps = |mixer: &Mixer| match mixer {
        Mixer::ShortConv { taps, .. } => Some(*taps),
        _ => None,
    };
    keys.extend(spec.mixers().find_map(taps).map(|taps| ("shortconv.l_cache", number(taps))));
    let sizes = spec.mixers().find_map(|mixer| match mixer {
        Mixer::Mamba2(m) => Some((m.dims, false)),
        Mixer::DeltaNet(dims) => Some((*dims, true)),
        _ => None,
    });
    let Some((dims, is_delta)) = sizes else { return };
    keys.extend([
        ("ssm.conv_kernel", number(dims.taps)),
        ("ssm.state_size", number(dims.state)),
        ("ssm.group_count", number(dims.groups)),
        ("ssm.inner_size", number(dims.inner())),
        ("ssm.time_step_rank", number(dims.heads)),
    ]);
    if !is_delta {
        return;
    }
    let is_recurrent = |layer: &LayerSpec| own_attention(layer).is_none();
    let listed: Vec<bool> = spec.layers.iter().map(is_recurrent).collect();
    keys.push(("attention.recurrent_layers", listed.into()));
    if let (true, Some(rope)) =
        (dialect.tiled_values, spec.layers.iter().find_map(own_attention).and_then(|a| a.rope))
    {
        keys.push(("rope.dimension_sections", sections(rope.rotary / 2).into()));
    }
}

/// How many pairs of channels count time, height and width in turn; text has one position for all three.
fn sections(pairs: usize) -> Vec<i32> {
    [0, 1, 2, pairs].map(|first| pairs.saturating_sub(first).div_ceil(3) as i32).to_vec()
}

fn multipliers(keys: &mut Keys, spec: &ModelSpec) {
    let of =
        |part| spec.factor(part).and_then(|factor| factor.rows.first()).map_or(1.0, |(_, factor)| *factor);
    keys.push(("embedding_scale", of(Part::Embed).into()));
    keys.push(("residual_scale", of(Part::Down).into()));
    keys.push(("logit_scale", divisor(of(Part::Head)).into()));
}

/// The number that a reader divides one by to get the factor.
fn divisor(factor: f32) -> f32 {
    let near = 1.0 / factor;
    [near, near.next_up(), near.next_down()].into_iter().find(|n| 1.0 / n == factor).unwrap_or(near)
}
