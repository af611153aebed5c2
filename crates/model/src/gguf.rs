//! GGUF metadata and tensor shapes become a specification. What a layer is and how large it is comes from
//! its tensors: converters leave keys out or write wrong ones.
//!
//! Must not know where the metadata lies nor what a family makes of it.

use mambo_checkpoint::GgufMetadata;
use mambo_kernel::AttentionDims;

use crate::check::MAX_LAYERS;
use crate::error::ModelError;
use crate::families::Family;
use crate::names::{Part, Place};
use crate::spec::ModelSpec;

/// The shape of a tensor by name, outermost first.
pub type ShapeOf<'a> = dyn Fn(&str) -> Option<Vec<usize>> + 'a;

/// Keys and tensors of a file, read in the name of a family; every failure names the file and the key or tensor.
pub(crate) struct GgufReader<'a> {
    pub file: &'a str,
    pub metadata: &'a GgufMetadata,
    /// What the file calls its architecture: the prefix of its keys.
    pub architecture: &'a str,
    pub family: &'static Family,
    pub shape_of: &'a ShapeOf<'a>,
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
        let (family, read) = Family::of_gguf(file, architecture)?;
        let reader = GgufReader { file, metadata, architecture, family, shape_of };
        let mut spec = read(&reader)?;
        spec.bos = metadata.u32("tokenizer.ggml.bos_token_id")?;
        spec.stop_tokens = family.stop_tokens.to_vec();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            spec.stop_tokens.extend(metadata.u32(&format!("tokenizer.ggml.{key}"))?);
        }
        spec.settle_tokens();
        spec.check(file)?;
        Ok(spec)
    }

    /// What GGUF metadata says to a family, whatever it calls itself; nothing where the family reads none.
    pub(crate) fn gguf_of(
        file: &str,
        metadata: &GgufMetadata,
        shape_of: &ShapeOf,
        family: &'static Family,
    ) -> Result<ModelSpec, ModelError> {
        const KEY: &str = "general.architecture";
        let architecture = metadata.str(KEY)?.ok_or_else(|| metadata.missing(KEY))?;
        let read = family.read_gguf.ok_or_else(|| metadata.missing(KEY))?;
        let spec = read(&GgufReader { file, metadata, architecture, family, shape_of })?;
        spec.check(file)?;
        Ok(spec)
    }
}

impl GgufReader<'_> {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(crate) fn size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let value = self.metadata.u64(&self.key(name))?;
        Ok(value.and_then(|n| usize::try_from(n).ok()))
    }

    pub(crate) fn want_size(&self, name: &str) -> Result<usize, ModelError> {
        self.size(name)?.ok_or_else(|| self.metadata.missing(&self.key(name)).into())
    }

    /// A size given once for all blocks or once per block.
    pub(crate) fn size_at(&self, name: &str, block: usize) -> Result<Option<usize>, ModelError> {
        let Some(list) = self.metadata.u64s(&self.key(name))? else { return Ok(None) };
        let value = if list.len() == 1 { list.first() } else { list.get(block) };
        match value {
            Some(&n) => Ok(usize::try_from(n).ok()),
            None => {
                Err(self.bad(&self.key(name), format!("has {} values, none for block {block}", list.len())))
            }
        }
    }

    pub(crate) fn bad(&self, field: &str, problem: String) -> ModelError {
        let (file, field) = (self.file.to_owned(), field.to_owned());
        let remedy = "convert the model again with a current converter".to_owned();
        ModelError::BadField { file, field, problem, remedy }
    }

    pub(crate) fn shape(&self, place: Place, part: Part, depth: usize) -> Option<Vec<usize>> {
        self.family.gguf_names(place, part, depth).find_map(|(name, _)| (self.shape_of)(&name))
    }

    /// The shape of a tensor that must be there with this many dimensions.
    pub(crate) fn want_shape<const N: usize>(
        &self,
        place: Place,
        part: Part,
        block: usize,
    ) -> Result<[usize; N], ModelError> {
        let tensor = self.family.gguf_name(place, part, block);
        let Some(shape) = self.shape(place, part, block) else {
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

    pub(crate) fn epsilon(&self, notes: &mut Vec<String>) -> Result<f32, ModelError> {
        let keys = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
        for key in keys {
            if let Some(eps) = self.metadata.f32(&self.key(key))? {
                return Ok(eps);
            }
        }
        notes.push("the file gives no norm epsilon: taken as 1e-5".to_owned());
        Ok(1e-5)
    }

    /// Refuses a file with more blocks than its metadata counts: a model without its last layers still talks, badly.
    pub(crate) fn check_no_more_blocks(&self, blocks: usize) -> Result<(), ModelError> {
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

    /// The sizes of attention; the tensor of queries may hold a gate beside each head.
    pub(crate) fn attention(
        &self,
        place: Place,
        index: usize,
        is_gated: bool,
    ) -> Result<AttentionDims, ModelError> {
        let [q, _] = self.want_shape(place, Part::Q, index)?;
        let q = if is_gated { q / 2 } else { q };
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
    pub(crate) fn check_head_counts(&self, index: usize, dims: &AttentionDims) -> Result<(), ModelError> {
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
}
