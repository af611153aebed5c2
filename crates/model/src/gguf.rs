//! GGUF metadata and tensor shapes become a specification. What a layer is and how large it is comes from
//! its tensors: converters leave keys out or write wrong ones.
//!
//! Must not know where the metadata lies. Position keys are read by nobody: the family has no position
//! signal.

use mambo_checkpoint::GgufMetadata;
use mambo_kernel::{AttentionDims, RouteDims, Scoring, SsmDims};

use crate::architecture::Architecture;
use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::names::{Part, Place};
use crate::spec::{LayerSpec, Mixer, ModelSpec, MoeSpec, MtpSpec};

/// What converters write for hybrids whatever the model was trained for.
const FORCED_CONTEXT: usize = 1 << 20;

/// The shape of a tensor by name, outermost first.
pub type ShapeOf<'a> = dyn Fn(&str) -> Option<Vec<usize>> + 'a;

struct Reader<'a> {
    file: &'a str,
    metadata: &'a GgufMetadata,
    architecture: &'a str,
    shape_of: &'a ShapeOf<'a>,
}

impl ModelSpec {
    /// Reads GGUF metadata; `shape_of` knows the tensors, `file` names the file in messages.
    pub fn from_gguf(
        file: &str,
        metadata: &GgufMetadata,
        shape_of: &ShapeOf,
    ) -> Result<ModelSpec, ModelError> {
        const KEY: &str = "general.architecture";
        let architecture = metadata.str(KEY)?.ok_or_else(|| metadata.missing(KEY))?;
        let row = Architecture::of_gguf(file, architecture)?;
        let reader = Reader { file, metadata, architecture, shape_of };
        reader.check_trunk()?;
        let mut notes = Vec::new();
        let norm_eps = reader.epsilon(&mut notes)?;
        let [vocab, hidden] = reader.want_shape(Place::Model, Part::Embed, 0)?;
        let (depth, has_mtp) = reader.depth(&mut notes)?;
        let layer = |index: usize| {
            let mixer = reader.mixer(index, hidden)?;
            Ok::<_, ModelError>(LayerSpec { norm_eps, mixer })
        };
        let mut spec = ModelSpec {
            architecture: row.name.to_owned(),
            hidden,
            vocab,
            layers: (0..depth).map(layer).collect::<Result<_, _>>()?,
            norm_eps,
            mtp: if has_mtp { Some(reader.mtp(depth, hidden, norm_eps)?) } else { None },
            tied_embeddings: shape_of("output.weight").is_none(),
            context: reader.size("context_length")?.filter(|&n| n != FORCED_CONTEXT),
            bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
            stop_tokens: row.stop_tokens.to_vec(),
            notes,
        };
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            spec.stop_tokens.extend(metadata.u32(&format!("tokenizer.ggml.{key}"))?);
        }
        spec.settle_tokens();
        spec.check(file)?;
        Ok(spec)
    }
}

impl Reader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let value = self.metadata.u64(&self.key(name))?;
        Ok(value.and_then(|n| usize::try_from(n).ok()))
    }

    fn want_size(&self, name: &str) -> Result<usize, ModelError> {
        self.size(name)?.ok_or_else(|| self.metadata.missing(&self.key(name)).into())
    }

    /// A size given once for all blocks or once per block.
    fn size_at(&self, name: &str, block: usize) -> Result<Option<usize>, ModelError> {
        let Some(list) = self.metadata.u64s(&self.key(name))? else { return Ok(None) };
        let value = if list.len() == 1 { list.first() } else { list.get(block) };
        match value {
            Some(&n) => Ok(usize::try_from(n).ok()),
            None => {
                Err(self.bad(&self.key(name), format!("has {} values, none for block {block}", list.len())))
            }
        }
    }

    fn bad(&self, field: &str, problem: String) -> ModelError {
        let (file, field) = (self.file.to_owned(), field.to_owned());
        let remedy = "convert the model again with a current converter".to_owned();
        ModelError::BadField { file, field, problem, remedy }
    }

    fn shape(&self, place: Place, part: Part, depth: usize) -> Option<Vec<usize>> {
        (self.shape_of)(&place.gguf(part, depth))
    }

    /// The shape of a tensor that must be there with this many dimensions.
    fn want_shape<const N: usize>(
        &self,
        place: Place,
        part: Part,
        block: usize,
    ) -> Result<[usize; N], ModelError> {
        let tensor = place.gguf(part, block);
        let Some(shape) = (self.shape_of)(&tensor) else {
            return Err(ModelError::MissingTensor {
                file: self.file.to_owned(),
                tensor,
                weight: place.canonical(part),
                remedy: "open the file of the whole model, or convert it again".to_owned(),
            });
        };
        let rank = shape.len();
        shape.try_into().map_err(|_| self.bad(&tensor, format!("has {rank} dimensions, expected {N}")))
    }

    fn epsilon(&self, notes: &mut Vec<String>) -> Result<f32, ModelError> {
        let keys = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
        for key in keys {
            if let Some(eps) = self.metadata.f32(&self.key(key))? {
                return Ok(eps);
            }
        }
        notes.push("the file gives no norm epsilon: taken as the family's 1e-5".to_owned());
        Ok(1e-5)
    }

    /// Refuses a file without the first layer: converters can write the MTP head into a file of its own.
    fn check_trunk(&self) -> Result<(), ModelError> {
        if (self.shape_of)("blk.0.attn_norm.weight").is_some() {
            return Ok(());
        }
        let blocks = self.size("block_count")?.unwrap_or(0).min(MAX_LAYERS + 1);
        let is_head = (0..blocks).any(|i| self.shape(Place::MtpMoe, Part::MtpProj, i).is_some());
        let (problem, remedy) = match is_head {
            true => (
                "is missing: this file holds the model's MTP head alone",
                "open the GGUF file of the trunk instead, which runs without the head",
            ),
            false => ("is missing: this file holds no layers", "open the file of the whole model"),
        };
        Err(ModelError::BadField {
            file: self.file.to_owned(),
            field: "blk.0".to_owned(),
            problem: problem.to_owned(),
            remedy: remedy.to_owned(),
        })
    }

    /// Layers of the trunk, and whether a block after them is an MTP head.
    fn depth(&self, notes: &mut Vec<String>) -> Result<(usize, bool), ModelError> {
        let blocks = self.want_size("block_count")?;
        if blocks > MAX_LAYERS {
            return Err(self.bad(&self.key("block_count"), format!("is {blocks}, more than {MAX_LAYERS}")));
        }
        let declared = self.size("nextn_predict_layers")?.unwrap_or(0);
        if declared > 1 {
            let problem = format!("is {declared}, but one MTP head is supported");
            return Err(self.bad(&self.key("nextn_predict_layers"), problem));
        }
        let last = blocks.saturating_sub(1);
        let present = self.shape(Place::MtpMoe, Part::MtpProj, last).is_some();
        if declared == 1 && !present {
            notes.push("the metadata describes an MTP head, but the file holds none".to_owned());
        }
        let depth = if declared == 1 || present { last } else { blocks };
        self.check_no_more_blocks(depth + usize::from(present))?;
        Ok((depth, present))
    }

    /// Refuses a file with more blocks than its metadata counts: a model without its last layers still talks, badly.
    fn check_no_more_blocks(&self, blocks: usize) -> Result<(), ModelError> {
        let has_norm = |block: &usize| self.shape(Place::Layer(*block), Part::Norm, 0).is_some();
        let Some(further) = (blocks..=MAX_LAYERS).find(has_norm) else { return Ok(()) };
        let said = |key| Ok::<_, ModelError>(self.size(key)?.unwrap_or(0));
        let problem = format!(
            "is {} and `{}` is {}, which leaves out `blk.{further}` that the file holds",
            said("block_count")?,
            self.key("nextn_predict_layers"),
            said("nextn_predict_layers")?,
        );
        Err(self.bad(&self.key("block_count"), problem))
    }

    fn mixer(&self, index: usize, hidden: usize) -> Result<Mixer, ModelError> {
        let place = Place::Layer(index);
        let has = |part| self.shape(place, part, index).is_some();
        if has(Part::InProj) {
            self.mamba2(index).map(Mixer::Mamba2)
        } else if has(Part::Q) {
            self.attention(place, index).map(Mixer::Attention)
        } else if has(Part::Router) {
            self.moe(place, index, hidden).map(Mixer::Moe)
        } else if has(Part::Up) {
            let [width, _] = self.want_shape(place, Part::Up, index)?;
            Ok(Mixer::Mlp { width })
        } else {
            let problem =
                "has none of ssm_in, attn_q, ffn_gate_inp and ffn_up, so what it computes is unknown";
            Err(self.bad(&format!("blk.{index}"), problem.to_owned()))
        }
    }

    fn mamba2(&self, index: usize) -> Result<SsmDims, ModelError> {
        let place = Place::Layer(index);
        let [heads] = self.want_shape(place, Part::DtBias, index)?;
        let [_, inner] = self.want_shape(place, Part::OutProj, index)?;
        let [conv_dim, taps] = self.want_shape(place, Part::ConvWeight, index)?;
        let groups = match self.shape(place, Part::SsmNorm, index).as_deref() {
            Some(&[groups, _]) => groups,
            _ => self.want_size("ssm.group_count")?,
        };
        let group_state = conv_dim.saturating_sub(inner) / 2;
        if heads == 0 || groups == 0 || inner % heads != 0 || group_state % groups != 0 {
            let sizes = format!("{inner} channels, {heads} heads, {conv_dim} convolved, {groups} groups");
            return Err(self.bad(&format!("blk.{index}"), format!("has sizes that do not divide: {sizes}")));
        }
        Ok(SsmDims { heads, head_dim: inner / heads, state: group_state / groups, groups, taps })
    }

    fn attention(&self, place: Place, index: usize) -> Result<AttentionDims, ModelError> {
        let [q, _] = self.want_shape(place, Part::Q, index)?;
        let [kv, _] = self.want_shape(place, Part::K, index)?;
        let head_dim = match self.size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None => match self.size_at("attention.head_count", index)? {
                Some(heads) if heads > 0 => q / heads,
                _ => return Err(self.metadata.missing(&self.key("attention.key_length")).into()),
            },
        };
        if head_dim == 0 || q % head_dim != 0 || kv % head_dim != 0 {
            let problem =
                format!("has {q} query and {kv} key channels, no multiples of the head size {head_dim}");
            return Err(self.bad(&format!("blk.{index}"), problem));
        }
        let dims = AttentionDims { q_heads: q / head_dim, kv_heads: kv / head_dim, head_dim };
        self.check_head_counts(index, &dims)?;
        Ok(dims)
    }

    /// Refuses a head size that neither count of heads agrees with. One of them may be wrong: converters write the
    /// first layer's query heads for all, and no key heads at all.
    fn check_head_counts(&self, index: usize, dims: &AttentionDims) -> Result<(), ModelError> {
        let said = |key: &str| {
            let list = self.metadata.u64s(key).ok().flatten()?;
            let value = if list.len() == 1 { list.first() } else { list.get(index) };
            value.copied().filter(|&heads| heads > 0)
        };
        let counts = [("head_count", "query", dims.q_heads), ("head_count_kv", "key", dims.kv_heads)];
        let mut disagreeing = Vec::new();
        for (name, kind, heads) in counts {
            let key = self.key(&format!("attention.{name}"));
            match said(&key) {
                Some(count) if count == heads as u64 => return Ok(()),
                Some(count) => disagreeing.push(format!("{heads} {kind} heads where `{key}` is {count}")),
                None => {}
            }
        }
        if disagreeing.is_empty() {
            return Ok(());
        }
        let (size, heads) = (dims.head_dim, disagreeing.join(" and "));
        let problem = format!("is {size}, which gives `blk.{index}` {heads}");
        Err(self.bad(&self.key("attention.key_length"), problem))
    }

    fn moe(&self, place: Place, index: usize, hidden: usize) -> Result<MoeSpec, ModelError> {
        let name = |part| place.gguf(part, index);
        let [experts, _] = self.want_shape(place, Part::Router, index)?;
        let [_, expert_width, io] = self.want_shape(place, Part::ExpertsUp, index)?;
        let has_latent = self.shape(place, Part::LatentDown, index).is_some();
        if io != hidden && !has_latent {
            let problem =
                format!("reads {io} channels of {hidden}, but there is no `{}`", name(Part::LatentDown));
            return Err(self.bad(&name(Part::ExpertsUp), problem));
        }
        let shared = self.shape(place, Part::SharedUp, index).and_then(|shape| shape.first().copied());
        let top_k = self.size_at("expert_used_count", index)?;
        // Zero groups is how some converters say that there are none.
        let groups = |key| Ok::<_, ModelError>(self.size(key)?.unwrap_or(1).max(1));
        Ok(MoeSpec {
            route: RouteDims {
                scoring: Scoring::Sigmoid,
                experts,
                top_k: top_k.ok_or_else(|| self.metadata.missing(&self.key("expert_used_count")))?,
                groups: groups("expert_group_count")?,
                top_groups: groups("expert_group_used_count")?,
                normalize: self.metadata.bool(&self.key("expert_weights_norm"))?.unwrap_or(true),
                scale: self.metadata.f32(&self.key("expert_weights_scale"))?.unwrap_or(1.0),
            },
            expert_width,
            latent: has_latent.then_some(io),
            shared_width: shared,
        })
    }

    fn mtp(&self, block: usize, hidden: usize, norm_eps: f32) -> Result<MtpSpec, ModelError> {
        let attention = self.attention(Place::MtpAttention, block)?;
        let moe = self.moe(Place::MtpMoe, block, hidden)?;
        Ok(MtpSpec { norm_eps, attention, moe })
    }
}
