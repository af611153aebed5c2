//! The mixers of one block, from its tensors.

use mambo_checkpoint::GgufValue;
use mambo_kernel::{Activation, Attention, Rope, RopeScaling, RouteDims, Scoring, SsmDims};

use super::read::File;
use crate::error::ModelError;
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, Mamba2Spec, Mixer, MlpSpec, MoeSpec};

/// Numbers that files give for ways to score experts.
pub(super) const SCORINGS: [(u64, Scoring); 2] = [(1, Scoring::Softmax), (2, Scoring::Sigmoid)];

/// A Mamba-2 mixer; without a norm its groups are in the keys.
pub(crate) fn mamba2(reader: &GgufReader, index: usize) -> Result<Mamba2Spec, ModelError> {
    let place = Place::Layer(index);
    let [heads] = reader.want_shape(place, Part::DtBias, index)?;
    let [_, inner] = reader.want_shape(place, Part::OutProj, index)?;
    let [conv_dim, taps] = reader.want_shape(place, Part::ConvWeight, index)?;
    let norm = reader.shape(place, Part::SsmNorm, index);
    let groups = match norm.as_deref() {
        Some(&[groups, _]) => groups,
        _ => reader.want_size("ssm.group_count")?,
    };
    let group_state = conv_dim.saturating_sub(inner) / 2;
    if heads == 0 || groups == 0 || inner % heads != 0 || group_state % groups != 0 {
        let sizes = format!("{inner} channels, {heads} heads, {conv_dim} convolved, {groups} groups");
        return Err(reader.bad(&format!("blk.{index}"), format!("has sizes that do not divide: {sizes}")));
    }
    let dims = SsmDims { heads, head_dim: inner / heads, state: group_state / groups, groups, taps };
    let conv_bias = reader.shape(place, Part::ConvBias, index).is_some();
    Ok(Mamba2Spec { dims, norm_groups: norm.map(|_| groups), conv_bias })
}

/// A gated delta net. Where value heads are tiled, every one of them gets a key head of its own: their order in the
/// columns of the output projection cannot be changed inside of quantised blocks.
pub(super) fn delta_net(file: &File, index: usize) -> Result<SsmDims, ModelError> {
    let (reader, place) = (file.reader, Place::Layer(index));
    let [heads] = reader.want_shape(place, Part::DtBias, index)?;
    let [_, inner] = reader.want_shape(place, Part::OutProj, index)?;
    let [conv_dim, taps] = reader.want_shape(place, Part::ConvWeight, index)?;
    let groups = reader.want_size("ssm.group_count")?;
    let keys = conv_dim.saturating_sub(inner) / 2;
    if heads == 0 || groups == 0 || inner % heads != 0 || keys % groups != 0 || heads % groups != 0 {
        let sizes = format!("{inner} channels, {heads} heads, {conv_dim} convolved, {groups} key heads");
        return Err(reader.bad(&format!("blk.{index}"), format!("has sizes that do not divide: {sizes}")));
    }
    let own_groups = if file.dialect.tiled_values { heads } else { groups };
    Ok(SsmDims { heads, head_dim: inner / heads, state: keys / groups, groups: own_groups, taps })
}

pub(super) fn short_conv(file: &File, index: usize) -> Result<Mixer, ModelError> {
    let [_, taps] = file.reader.want_shape(Place::Layer(index), Part::ConvWeight, index)?;
    Ok(Mixer::ShortConv { taps, has_bias: file.has(index, Part::ConvBias) })
}

pub(super) fn attention(file: &File, index: usize) -> Result<AttentionSpec, ModelError> {
    let dims = file.reader.attention(Place::Layer(index), index, file.dialect.is_gated)?;
    let window = file.reader.size("attention.sliding_window")?.filter(|window| *window > 0);
    let is_local = window.is_some() && is_local(file, index)?;
    let scale = file.number("attention.scale")?.filter(|scale| *scale > 0.0);
    Ok(AttentionSpec {
        attention: Attention {
            scale: scale.unwrap_or_else(|| (file.dialect.scale)(&dims, file.hidden, file.depth)),
            window: window.filter(|_| is_local),
            soft_cap: file.number("attn_logit_softcapping")?.filter(|cap| *cap > 0.0),
            sinks: file.has(index, Part::Sinks),
            ..Attention::plain(dims)
        },
        rope: rope(file, dims.head_dim, is_local)?,
        qk_norm: file.has(index, Part::QNorm),
        qkv_bias: file.has(index, Part::QBias),
        o_bias: file.has(index, Part::OBias),
        gated: file.dialect.is_gated,
    })
}

/// Whether the window of the file is this layer's: as listed, or all but every nth.
fn is_local(file: &File, index: usize) -> Result<bool, ModelError> {
    let (reader, key) = (file.reader, file.reader.key("attention.sliding_window_pattern"));
    let all_but_every = |n: usize| n > 0 && !(index + 1).is_multiple_of(n);
    match reader.metadata.get(&key) {
        None => Ok(file.dialect.global_every.is_some_and(all_but_every)),
        Some(GgufValue::Array(_)) => {
            let list = reader.metadata.bools(&key)?.unwrap_or_default();
            let problem = || format!("has {} values, none for block {index}", list.len());
            list.get(index).copied().ok_or_else(|| reader.bad(&key, problem()))
        }
        Some(_) => Ok(reader.size("attention.sliding_window_pattern")?.is_some_and(all_but_every)),
    }
}

fn rope(file: &File, head_dim: usize, is_local: bool) -> Result<Option<Rope>, ModelError> {
    let (reader, dialect) = (file.reader, file.dialect);
    let is_on = reader.metadata.bool(&reader.key("rope.scaling.finetuned"))?.unwrap_or(true);
    if dialect.has_rope_switch && !is_on {
        return Ok(None);
    }
    let number = |name: &str| Ok::<_, ModelError>(file.number(name)?.map(f64::from));
    let of_local = if is_local { number("rope.freq_base_swa")?.or(dialect.local_base) } else { None };
    let base = match of_local {
        Some(base) => base,
        None => number("rope.freq_base")?.unwrap_or(10_000.0),
    };
    let rotary = reader.size("rope.dimension_count")?.unwrap_or(head_dim).min(head_dim);
    let is_stretched = !(is_local && dialect.local_base.is_some());
    let scaling = if is_stretched { scaling(file)? } else { RopeScaling::None };
    let has_factors = reader.shape(Place::Model, Part::RopeFactors, 0).is_some();
    Ok(Some(Rope { head_dim, rotary, pairs: dialect.pairs, base, scaling, has_factors }))
}

fn scaling(file: &File) -> Result<RopeScaling, ModelError> {
    let reader = file.reader;
    let number = |name: &str| Ok::<_, ModelError>(file.number(name)?.map(f64::from));
    let kind = reader.metadata.str(&reader.key("rope.scaling.type"))?.unwrap_or("none");
    let factor = number("rope.scaling.factor")?.filter(|factor| *factor > 0.0);
    Ok(match (kind, factor) {
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", Some(factor)) => {
            // The whole context where the file does not say what it was before.
            let context = reader.size("context_length")?.unwrap_or(1);
            let original = reader.size("rope.scaling.original_context_length")?.unwrap_or(context);
            RopeScaling::Yarn {
                factor,
                original: original as f64,
                fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: file.dialect.yarn_truncates,
                magnitude: Rope::yarn_magnitude(factor) * number("rope.scaling.attn_factor")?.unwrap_or(1.0),
            }
        }
        ("none", _) => RopeScaling::None,
        (other, _) => {
            let problem = format!("is `{other}`, but only none, linear and yarn with a factor are supported");
            return Err(reader.bad(&reader.key("rope.scaling.type"), problem));
        }
    })
}

pub(super) fn mlp(file: &File, index: usize) -> Result<Mixer, ModelError> {
    let [width, _] = file.reader.want_shape(Place::Layer(index), Part::Up, index)?;
    Ok(Mixer::Mlp(MlpSpec { width, gate: Some(file.dialect.activation) }))
}

pub(super) fn moe(file: &File, index: usize) -> Result<Mixer, ModelError> {
    let (reader, place) = (file.reader, Place::Layer(index));
    let [experts, _] = reader.want_shape(place, Part::Router, index)?;
    let [_, expert_width, _] = reader.want_shape(place, Part::ExpertsUp, index)?;
    let shared_width = reader.shape(place, Part::SharedUp, index).and_then(|shape| shape.first().copied());
    let top_k = reader.size_at("expert_used_count", index)?;
    Ok(Mixer::Moe(MoeSpec {
        route: RouteDims {
            scoring: scoring(file)?,
            experts,
            top_k: top_k.ok_or_else(|| reader.metadata.missing(&reader.key("expert_used_count")))?,
            groups: 1,
            top_groups: 1,
            normalize: reader.metadata.bool(&reader.key("expert_weights_norm"))?.unwrap_or(true),
            scale: file.number("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
        },
        choice_bias: file.has(index, Part::RouterBias),
        biases: file.has(index, Part::RouterOffset),
        expert_width,
        gate: Some(gate(file, index)?),
        latent: None,
        shared_width,
        shared_gate: file.has(index, Part::SharedRouter),
    }))
}

fn scoring(file: &File) -> Result<Scoring, ModelError> {
    const KEY: &str = "expert_gating_func";
    let reader = file.reader;
    let Some(number) = reader.metadata.u64(&reader.key(KEY))? else { return Ok(file.dialect.scoring) };
    let known = SCORINGS.iter().find(|(own, _)| *own == number).map(|(_, scoring)| *scoring);
    known.ok_or_else(|| {
        reader
            .bad(&reader.key(KEY), format!("is {number}, but only 1 (softmax) and 2 (sigmoid) are supported"))
    })
}

/// What opens the gates of experts; their bound may be in the keys, for every layer.
fn gate(file: &File, index: usize) -> Result<Activation, ModelError> {
    let Activation::ClampedSilu { alpha, limit } = file.dialect.activation else {
        return Ok(file.dialect.activation);
    };
    let reader = file.reader;
    let limits = reader.metadata.f32s(&reader.key("swiglu_clamp_exp"))?.unwrap_or_default();
    let own = limits.get(index).or(limits.first()).copied().filter(|limit| *limit > 0.0);
    Ok(Activation::ClampedSilu { alpha, limit: own.unwrap_or(limit) })
}
