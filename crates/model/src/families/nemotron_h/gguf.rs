//! The family's GGUF files. Position keys are read by nobody: the family has no position signal.

use mambo_kernel::{RouteDims, Scoring};

use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::families::gguf;
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, LayerSpec, Mamba2Spec, Mixer, MlpSpec, ModelSpec, MoeSpec, MtpSpec};

/// What converters write for hybrids whatever the model was trained for.
const FORCED_CONTEXT: usize = 1 << 20;

pub(super) fn read(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    check_trunk(reader)?;
    let mut notes = Vec::new();
    let norm_eps = reader.epsilon(&mut notes)?;
    let [vocab, hidden] = reader.want_shape(Place::Model, Part::Embed, 0)?;
    let (depth, has_mtp) = depth(reader, &mut notes)?;
    let layer = |index: usize| Ok::<_, ModelError>(LayerSpec::of(norm_eps, mixer(reader, index, hidden)?));
    Ok(ModelSpec {
        architecture: super::FAMILY.name.to_owned(),
        hidden,
        vocab,
        layers: (0..depth).map(layer).collect::<Result<_, _>>()?,
        norm_eps,
        mtp: if has_mtp { Some(mtp(reader, depth, hidden, norm_eps)?) } else { None },
        tied_embeddings: (reader.shape_of)("output.weight").is_none(),
        factors: Vec::new(),
        logit_cap: None,
        context: reader.size("context_length")?.filter(|&n| n != FORCED_CONTEXT),
        bos: None,
        stop_tokens: Vec::new(),
        notes,
    })
}

/// Refuses a file without the first layer: converters can write the MTP head into a file of its own.
fn check_trunk(reader: &GgufReader) -> Result<(), ModelError> {
    if (reader.shape_of)("blk.0.attn_norm.weight").is_some() {
        return Ok(());
    }
    let blocks = reader.size("block_count")?.unwrap_or(0).min(MAX_LAYERS + 1);
    let is_head = (0..blocks).any(|i| reader.shape(Place::MtpMoe, Part::MtpProj, i).is_some());
    let (problem, remedy) = match is_head {
        true => (
            "is missing: this file holds the model's MTP head alone",
            "open the GGUF file of the trunk instead, which runs without the head",
        ),
        false => ("is missing: this file holds no layers", "open the file of the whole model"),
    };
    Err(ModelError::BadField {
        file: reader.file.to_owned(),
        field: "blk.0".to_owned(),
        problem: problem.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// Layers of the trunk, and whether a block after them is an MTP head.
fn depth(reader: &GgufReader, notes: &mut Vec<String>) -> Result<(usize, bool), ModelError> {
    let blocks = reader.want_size("block_count")?;
    if blocks > MAX_LAYERS {
        return Err(reader.bad(&reader.key("block_count"), format!("is {blocks}, more than {MAX_LAYERS}")));
    }
    let declared = reader.size("nextn_predict_layers")?.unwrap_or(0);
    if declared > 1 {
        let problem = format!("is {declared}, but one MTP head is supported");
        return Err(reader.bad(&reader.key("nextn_predict_layers"), problem));
    }
    let last = blocks.saturating_sub(1);
    let present = reader.shape(Place::MtpMoe, Part::MtpProj, last).is_some();
    if declared == 1 && !present {
        notes.push("the metadata describes an MTP head, but the file holds none".to_owned());
    }
    let depth = if declared == 1 || present { last } else { blocks };
    reader.check_no_more_blocks(depth + usize::from(present))?;
    Ok((depth, present))
}

fn mixer(reader: &GgufReader, index: usize, hidden: usize) -> Result<Mixer, ModelError> {
    let place = Place::Layer(index);
    let has = |part| reader.shape(place, part, index).is_some();
    if has(Part::InProj) {
        mamba2(reader, index).map(Mixer::Mamba2)
    } else if has(Part::Q) {
        reader.attention(place, index, false).map(|dims| Mixer::Attention(AttentionSpec::plain(dims)))
    } else if has(Part::Router) {
        moe(reader, place, index, hidden).map(Mixer::Moe)
    } else if has(Part::Up) {
        let [width, _] = reader.want_shape(place, Part::Up, index)?;
        Ok(Mixer::Mlp(MlpSpec { width, gate: None }))
    } else {
        let problem = "has none of ssm_in, attn_q, ffn_gate_inp and ffn_up, so what it computes is unknown";
        Err(reader.bad(&format!("blk.{index}"), problem.to_owned()))
    }
}

fn mamba2(reader: &GgufReader, index: usize) -> Result<Mamba2Spec, ModelError> {
    let dims = gguf::mamba2(reader, index)?.dims;
    Ok(Mamba2Spec { dims, norm_groups: Some(dims.groups), conv_bias: true })
}

fn moe(reader: &GgufReader, place: Place, index: usize, hidden: usize) -> Result<MoeSpec, ModelError> {
    let name = |part| reader.family.gguf_name(place, part, index);
    let [experts, _] = reader.want_shape(place, Part::Router, index)?;
    let [_, expert_width, io] = reader.want_shape(place, Part::ExpertsUp, index)?;
    let has_latent = reader.shape(place, Part::LatentDown, index).is_some();
    if io != hidden && !has_latent {
        let problem =
            format!("reads {io} channels of {hidden}, but there is no `{}`", name(Part::LatentDown));
        return Err(reader.bad(&name(Part::ExpertsUp), problem));
    }
    let shared = reader.shape(place, Part::SharedUp, index).and_then(|shape| shape.first().copied());
    let top_k = reader.size_at("expert_used_count", index)?;
    // Zero groups is how some converters say that there are none.
    let groups = |key| Ok::<_, ModelError>(reader.size(key)?.unwrap_or(1).max(1));
    Ok(MoeSpec {
        route: RouteDims {
            scoring: Scoring::Sigmoid,
            experts,
            top_k: top_k.ok_or_else(|| reader.metadata.missing(&reader.key("expert_used_count")))?,
            groups: groups("expert_group_count")?,
            top_groups: groups("expert_group_used_count")?,
            normalize: reader.metadata.bool(&reader.key("expert_weights_norm"))?.unwrap_or(true),
            scale: reader.metadata.f32(&reader.key("expert_weights_scale"))?.unwrap_or(1.0),
        },
        choice_bias: true,
        biases: false,
        expert_width,
        gate: None,
        latent: has_latent.then_some(io),
        shared_width: shared,
        shared_gate: false,
    })
}

fn mtp(reader: &GgufReader, block: usize, hidden: usize, norm_eps: f32) -> Result<MtpSpec, ModelError> {
    let attention = reader.attention(Place::MtpAttention, block, false)?;
    let moe = moe(reader, Place::MtpMoe, block, hidden)?;
    Ok(MtpSpec { norm_eps, attention, moe })
}
