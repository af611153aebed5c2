//! What a file of a specification holds: its tensors and the metadata that describes it. The words are the family's.
//!
//! Must not know values of weights, tokenizers or element types.

use mambo_checkpoint::GgufValue;
use mambo_kernel::{RopePairs, RopeScaling, WeightUse};
use serde_json::Value;

use crate::error::ModelError;
use crate::families::Family;
use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, Mixer, ModelSpec};
use crate::weights::Weight;

/// One tensor of a file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportTensor {
    /// Name in the file.
    pub name: String,
    /// Canonical name of the weight it holds.
    pub weight: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Row of the weight it starts with: experts may have a tensor each.
    pub first_row: usize,
    /// Whether it may be stored in a smaller type; the others are f32 in every file.
    pub quantizable: bool,
    /// Channels of a head whose rows go from halves to neighbours: row `2i` is the weight's `i`, row `2i + 1` its
    /// `i + n/2`.
    pub turned_heads: Option<usize>,
}

/// Where a row stands before heads of so many channels go from halves to neighbours.
pub fn turned_row(heads: Option<usize>, row: usize) -> usize {
    let Some(n) = heads else { return row };
    let (head, channel) = (row / n * n, row % n);
    head + channel % 2 * (n / 2) + channel / 2
}

impl ModelSpec {
    /// The keys that describe the model in a GGUF file, in file order: `general.architecture` and those with its
    /// prefix.
    ///
    /// `general.name`, the file type and the tokenizer are the caller's to add.
    pub fn gguf_metadata(&self) -> Result<Vec<(String, GgufValue)>, ModelError> {
        let family = Family::of(self);
        let write = family.write_gguf.ok_or_else(|| self.not_written("GGUF files"))?;
        if self.as_gguf().rope_factors() != self.rope_factors() {
            return Err(self.not_written("GGUF files with the scaling of Llama 3"));
        }
        let (architecture, entries) = write(self);
        let mut keys = vec![("general.architecture".to_owned(), GgufValue::from(architecture))];
        keys.extend(entries.into_iter().map(|(name, value)| (format!("{architecture}.{name}"), value)));
        Ok(keys)
    }

    /// A config.json that describes this model.
    pub fn hf_config(&self) -> Result<Value, ModelError> {
        let write = Family::of(self).write_config.ok_or_else(|| self.not_written("safetensors folders"))?;
        Ok(write(self))
    }

    fn not_written(&self, what: &'static str) -> ModelError {
        ModelError::NotWritten { family: self.architecture.clone(), what }
    }

    /// The tensors of a GGUF file, in file order: the model's own, then block by block in the order of their names.
    pub fn gguf_tensors(&self) -> Vec<ExportTensor> {
        let (family, depth) = (Family::of(self), self.layers.len());
        let block = |place: Place| match place {
            Place::Model => 0,
            Place::Layer(index) => 1 + index,
            Place::MtpAttention | Place::MtpMoe => 1 + depth,
        };
        let weights = self.weights();
        let mut tensors: Vec<(usize, ExportTensor)> = stored(&weights)
            .map(|weight| {
                let tensor = ExportTensor {
                    name: family.gguf_name(weight.place, weight.part, depth),
                    weight: weight.name.clone(),
                    shape: self.gguf_shape(weight),
                    first_row: 0,
                    quantizable: weight.is_quantizable(),
                    turned_heads: self.turned_heads(weight),
                };
                (block(weight.place), tensor)
            })
            .collect();
        tensors.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.name.cmp(&y.name)));
        tensors.into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// The head size of queries and keys whose rows have another order in a GGUF file.
    fn turned_heads(&self, weight: &Weight) -> Option<usize> {
        let is_turned = matches!(weight.part, Part::Q | Part::K | Part::QBias | Part::KBias);
        let Place::Layer(index) = weight.place else { return None };
        let rope = self.layers[index].mixers().find_map(|mixer| match mixer {
            Mixer::Attention(a) => a.rope,
            _ => None,
        })?;
        let is_other = Family::of(self).gguf_neighbours && rope.pairs == RopePairs::Halves;
        (is_turned && is_other).then_some(rope.head_dim)
    }

    /// The same model as a GGUF file describes it: with pairs that are neighbours and frequencies divided by a weight,
    /// where its family keeps them so.
    pub fn as_gguf(&self) -> ModelSpec {
        let mut spec = self.clone();
        let mixers =
            spec.layers.iter_mut().flat_map(|layer| &mut layer.halves).flat_map(|half| &mut half.mixers);
        for mixer in mixers {
            let Mixer::Attention(AttentionSpec { rope: Some(rope), .. }) = mixer else { continue };
            if Family::of(self).gguf_neighbours {
                rope.pairs = RopePairs::Neighbours;
            }
            if let RopeScaling::Llama3 { .. } = rope.scaling {
                (rope.scaling, rope.has_factors) = (RopeScaling::None, true);
            }
        }
        spec
    }

    /// Converters fold three of the small weights.
    fn gguf_shape(&self, weight: &Weight) -> Vec<usize> {
        let groups = match weight.place {
            Place::Layer(index) => self.layers[index].mixers().find_map(|mixer| match mixer {
                Mixer::Mamba2(m) => m.norm_groups,
                _ => None,
            }),
            _ => None,
        };
        match weight.part {
            Part::A | Part::D => vec![weight.shape[0], 1],
            Part::SsmNorm => {
                let groups = groups.unwrap_or(1);
                vec![groups, weight.shape[0] / groups]
            }
            _ => weight.shape.clone(),
        }
    }

    /// The tensors of a safetensors folder, in the order a forward pass meets them; every expert has its own.
    pub fn hf_tensors(&self) -> Vec<ExportTensor> {
        let family = Family::of(self);
        let mut tensors = Vec::new();
        let weights = self.weights();
        for weight in stored(&weights) {
            let name = family.tensor_name(weight.place, weight.part);
            let (experts, shape) = match weight.part.usage() {
                WeightUse::Experts => (weight.shape[0], weight.shape[1..].to_vec()),
                _ if weight.part == Part::ConvWeight => (1, vec![weight.shape[0], 1, weight.shape[1]]),
                _ => (1, weight.shape.clone()),
            };
            let rows = shape[..shape.len() - 1].iter().product::<usize>();
            tensors.extend((0..experts).map(|expert| ExportTensor {
                name: name.replace("{e}", &expert.to_string()),
                weight: weight.name.clone(),
                shape: shape.clone(),
                first_row: expert * rows,
                quantizable: weight.is_quantizable(),
                turned_heads: None,
            }));
        }
        tensors
    }
}

/// Weights that files hold, each once.
fn stored(weights: &[Weight]) -> impl Iterator<Item = &Weight> {
    weights.iter().filter(|weight| weight.constant.is_none() && weight.part != Part::TiedHead)
}
