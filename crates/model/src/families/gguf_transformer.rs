//! GGUF files of plain transformers: what a layer has is read off its tensors, the rest off the keys that the families
//! share. What differs between them is data.

use mambo_kernel::{Activation, Attention, Rope, RopePairs, RopeScaling, RouteDims, Scoring};

use super::gpt_oss::{ALPHA, LIMIT};
use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, Factor, Half, LayerSpec, Mixer, MlpSpec, ModelSpec, MoeSpec};

/// What the keys and tensors of a file do not say.
struct Quirks {
    /// Which channels are rotated together: converters reorder the rows of some families.
    pairs: RopePairs,
    /// What opens gates.
    activation: Activation,
    /// Every nth layer is global where there is a window; the others are local.
    global_every: Option<usize>,
    /// Rotary base of local layers, where it is another than the file's.
    local_base: Option<f64>,
    /// Whether YaRN's ramp ends at whole channels.
    yarn_truncates: bool,
    /// Whether embeddings are multiplied with the root of the hidden width.
    scaled_embedding: bool,
}

const PLAIN: Quirks = Quirks {
    pairs: RopePairs::Halves,
    activation: Activation::Silu,
    global_every: None,
    local_base: None,
    yarn_truncates: true,
    scaled_embedding: false,
};

/// Llama and what converters call so.
pub(super) fn llama(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    read(reader, &Quirks { pairs: RopePairs::Neighbours, ..PLAIN })
}

/// Qwen 2 and 3.
pub(super) fn qwen(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    read(reader, &PLAIN)
}

/// Gemma 3: every sixth layer is global.
pub(super) fn gemma3(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    let quirks = Quirks {
        activation: Activation::GeluTanh,
        global_every: Some(6),
        local_base: Some(10_000.0),
        scaled_embedding: true,
        ..PLAIN
    };
    read(reader, &quirks)
}

/// gpt-oss: every second layer is global.
pub(super) fn gpt_oss(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    let activation = Activation::ClampedSilu { alpha: ALPHA, limit: LIMIT };
    read(reader, &Quirks { activation, global_every: Some(2), yarn_truncates: false, ..PLAIN })
}

fn read(reader: &GgufReader, quirks: &Quirks) -> Result<ModelSpec, ModelError> {
    let mut notes = Vec::new();
    let norm_eps = reader.epsilon(&mut notes)?;
    let [vocab, hidden] = reader.want_shape(Place::Model, Part::Embed, 0)?;
    let depth = reader.want_size("block_count")?;
    if depth == 0 || depth > MAX_LAYERS {
        return Err(reader.bad(&reader.key("block_count"), format!("is {depth}, expected 1 to {MAX_LAYERS}")));
    }
    reader.check_no_more_blocks(depth)?;
    let layer = |index: usize| layer(reader, quirks, norm_eps, index);
    let factors = match quirks.scaled_embedding {
        true => vec![Factor::all(Part::Embed, (hidden as f64).sqrt() as f32)],
        false => Vec::new(),
    };
    Ok(ModelSpec {
        architecture: reader.family.name.to_owned(),
        hidden,
        vocab,
        layers: (0..depth).map(layer).collect::<Result<_, _>>()?,
        norm_eps,
        mtp: None,
        tied_embeddings: (reader.shape_of)("output.weight").is_none(),
        factors,
        logit_cap: reader.metadata.f32(&reader.key("final_logit_softcapping"))?,
        context: reader.size("context_length")?,
        bos: None,
        stop_tokens: Vec::new(),
        notes,
    })
}

fn layer(reader: &GgufReader, quirks: &Quirks, norm_eps: f32, index: usize) -> Result<LayerSpec, ModelError> {
    let has = |part| reader.shape(Place::Layer(index), part, index).is_some();
    let feed_forward =
        if has(Part::Router) { moe(reader, quirks, index)? } else { mlp(reader, quirks, index)? };
    // gpt-oss calls the norm before its experts by the name that others give to the one after attention.
    let is_sandwich = has(Part::PostNorm) && has(Part::MlpPostNorm);
    let half = |mixer| Half { mixers: vec![mixer], post_norm: is_sandwich };
    let attention = Mixer::Attention(attention(reader, quirks, index)?);
    Ok(LayerSpec { norm_eps, halves: vec![half(attention), half(feed_forward)] })
}

fn attention(reader: &GgufReader, quirks: &Quirks, index: usize) -> Result<AttentionSpec, ModelError> {
    let place = Place::Layer(index);
    let has = |part| reader.shape(place, part, index).is_some();
    let dims = reader.attention(place, index)?;
    let window = reader.size("attention.sliding_window")?.filter(|window| *window > 0);
    let is_local = quirks.global_every.is_some_and(|every| !(index + 1).is_multiple_of(every));
    let soft_cap = reader.metadata.f32(&reader.key("attn_logit_softcapping"))?.filter(|cap| *cap > 0.0);
    Ok(AttentionSpec {
        attention: Attention {
            window: window.filter(|_| is_local),
            soft_cap,
            sinks: has(Part::Sinks),
            ..Attention::plain(dims)
        },
        rope: Some(rope(reader, quirks, dims.head_dim, is_local)?),
        qk_norm: has(Part::QNorm),
        qkv_bias: has(Part::QBias),
        o_bias: has(Part::OBias),
        gated: false,
    })
}

fn rope(reader: &GgufReader, quirks: &Quirks, head_dim: usize, is_local: bool) -> Result<Rope, ModelError> {
    let number = |name: &str| Ok::<_, ModelError>(reader.metadata.f32(&reader.key(name))?.map(f64::from));
    let local_base = quirks.local_base.filter(|_| is_local);
    let base = match local_base {
        Some(base) => base,
        None => number("rope.freq_base")?.unwrap_or(10_000.0),
    };
    let rotary = reader.size("rope.dimension_count")?.unwrap_or(head_dim).min(head_dim);
    let kind = reader.metadata.str(&reader.key("rope.scaling.type"))?.unwrap_or("none");
    let factor = number("rope.scaling.factor")?.filter(|factor| *factor > 0.0);
    let scaling = match (kind, factor) {
        _ if local_base.is_some() => RopeScaling::None,
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", Some(factor)) => RopeScaling::Yarn {
            factor,
            original: original_context(reader)?,
            fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            truncate: quirks.yarn_truncates,
            magnitude: Rope::yarn_magnitude(factor) * number("rope.scaling.attn_factor")?.unwrap_or(1.0),
        },
        ("none", _) => RopeScaling::None,
        (other, _) => {
            let problem = format!("is `{other}`, but only none, linear and yarn with a factor are supported");
            return Err(reader.bad(&reader.key("rope.scaling.type"), problem));
        }
    };
    let has_factors = reader.shape(Place::Model, Part::RopeFactors, 0).is_some();
    Ok(Rope { head_dim, rotary, pairs: quirks.pairs, base, scaling, has_factors })
}

/// The context before it was stretched; the whole one where the file does not say.
fn original_context(reader: &GgufReader) -> Result<f64, ModelError> {
    let context = reader.size("context_length")?.unwrap_or(1);
    Ok(reader.size("rope.scaling.original_context_length")?.unwrap_or(context) as f64)
}

fn mlp(reader: &GgufReader, quirks: &Quirks, index: usize) -> Result<Mixer, ModelError> {
    let [width, _] = reader.want_shape(Place::Layer(index), Part::Up, index)?;
    Ok(Mixer::Mlp(MlpSpec { width, gate: Some(quirks.activation) }))
}

fn moe(reader: &GgufReader, quirks: &Quirks, index: usize) -> Result<Mixer, ModelError> {
    let place = Place::Layer(index);
    let [experts, _] = reader.want_shape(place, Part::Router, index)?;
    let [_, expert_width, _] = reader.want_shape(place, Part::ExpertsUp, index)?;
    let shared_width = reader.shape(place, Part::SharedUp, index).and_then(|shape| shape.first().copied());
    Ok(Mixer::Moe(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Softmax,
            experts,
            top_k: reader.want_size("expert_used_count")?,
            groups: 1,
            top_groups: 1,
            normalize: reader.metadata.bool(&reader.key("expert_weights_norm"))?.unwrap_or(true),
            scale: 1.0,
        },
        choice_bias: false,
        biases: reader.shape(place, Part::RouterOffset, index).is_some(),
        expert_width,
        gate: Some(quirks.activation),
        latent: None,
        shared_width,
        shared_gate: reader.shape(place, Part::SharedRouter, index).is_some(),
    }))
}
