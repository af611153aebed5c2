//! A GGUF file of a specification, and the proof that it says what the specification does.

use mambo_checkpoint::{GgufMetadata, GgufValue};
use mambo_kernel::{Rope, RopePairs, RopeScaling};

use super::{ExportTensor, Order, plain};
use crate::error::ModelError;
use crate::families::Family;
use crate::families::gguf::{Arrangement, Multipliers};
use crate::names::{Part, Place};
use crate::spec::{AttentionSpec, Factor, Mixer, ModelSpec};
use crate::weights::Weight;

impl ModelSpec {
    /// The keys that describe the model in a GGUF file, in file order: `general.architecture` and those with its
    /// prefix. A model that a reader would take for another one is refused.
    ///
    /// `general.name`, the file type and the tokenizer are the caller's to add.
    pub fn gguf_metadata(&self) -> Result<Vec<(String, GgufValue)>, ModelError> {
        let write = Family::of(self).write_gguf.ok_or_else(|| self.not_written("GGUF files"))?;
        let (architecture, entries) = write(self);
        let mut keys = vec![("general.architecture".to_owned(), GgufValue::from(architecture))];
        keys.extend(entries.into_iter().map(|(name, value)| (format!("{architecture}.{name}"), value)));
        self.check_read_back(&keys)?;
        Ok(keys)
    }

    /// Reads what would be written.
    fn check_read_back(&self, keys: &[(String, GgufValue)]) -> Result<(), ModelError> {
        const FILE: &str = "the file to be written";
        let mut metadata = GgufMetadata::new(FILE);
        keys.iter().for_each(|(key, value)| metadata.set(key.clone(), value.clone()));
        let tensors: std::collections::HashMap<_, _> =
            self.gguf_tensors().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
        let read = ModelSpec::from_gguf(FILE, &metadata, &|name| tensors.get(name).cloned())?;
        match difference(&self.normal_form(), &read.normal_form()) {
            None => Ok(()),
            Some(what) => Err(ModelError::NotKept { family: self.architecture.clone(), what }),
        }
    }

    /// The tensors of a GGUF file, in file order: the model's own, then block by block in the order of their names.
    pub fn gguf_tensors(&self) -> Vec<ExportTensor> {
        let depth = self.layers.len();
        let block = |place: Place| match place {
            Place::Model => 0,
            Place::Layer(index) => 1 + index,
            Place::MtpAttention | Place::MtpMoe => 1 + depth,
        };
        let weights = self.weights();
        let in_file = weights.iter().filter(|weight| weight.constant.is_none());
        let mut tensors: Vec<(usize, ExportTensor)> =
            in_file.filter_map(|weight| Some((block(weight.place), self.gguf_tensor(weight)?))).collect();
        tensors.extend(self.llama3_factors().map(|tensor| (0, tensor)));
        tensors.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.name.cmp(&y.name)));
        tensors.into_iter().map(|(_, tensor)| tensor).collect()
    }

    fn gguf_tensor(&self, weight: &Weight) -> Option<ExportTensor> {
        let (family, depth) = (Family::of(self), self.layers.len());
        // A head that is the embedding is stored once, unless factors in the weights make two of them.
        let part = match weight.part {
            Part::TiedHead if family.dialect.multipliers != Multipliers::InWeights => return None,
            Part::TiedHead => Part::Head,
            part => part,
        };
        let Arrangement { name, rows, columns, joined } = (family.arrange)(self, weight)?;
        let usual = || family.gguf_name(weight.place, part, depth);
        let in_block = |name: &str| match weight.place {
            Place::Layer(index) => format!("blk.{index}.{name}"),
            _ => name.to_owned(),
        };
        let mut shape = self.gguf_shape(weight);
        // Elements of a vector are the columns of its one row.
        let (rows, columns) = if shape.len() == 1 { (Order::Same, rows) } else { (rows, columns) };
        if joined.is_some() {
            shape[0] *= 2;
        }
        Some(ExportTensor {
            name: name.map_or_else(usual, in_block),
            second: joined.map(|part| weight.place.canonical(part)),
            rows,
            columns,
            ..plain(weight, shape)
        })
    }

    /// What Llama 3 divides its frequencies by, as a tensor.
    fn llama3_factors(&self) -> Option<ExportTensor> {
        let rope = self.mixers().find_map(|mixer| match mixer {
            Mixer::Attention(a) => a.rope.filter(|rope| matches!(rope.scaling, RopeScaling::Llama3 { .. })),
            _ => None,
        })?;
        let plain = Rope { scaling: RopeScaling::None, ..rope }.frequencies(None);
        let values = plain.iter().zip(rope.frequencies(None)).map(|(plain, scaled)| (plain / scaled) as f32);
        let (place, part) = (Place::Model, Part::RopeFactors);
        Some(ExportTensor {
            name: Family::of(self).gguf_name(place, part, self.layers.len()),
            weight: place.canonical(part),
            part,
            second: None,
            shape: vec![rope.rotary / 2],
            first_row: 0,
            quantizable: false,
            rows: Order::Same,
            columns: Order::Same,
            values: Some(values.collect()),
        })
    }

    /// Converters fold three of the small weights.
    fn gguf_shape(&self, weight: &Weight) -> Vec<usize> {
        let mamba = match weight.place {
            Place::Layer(index) => self.layers[index].mixers().find_map(|mixer| match mixer {
                Mixer::Mamba2(m) => Some(m),
                _ => None,
            }),
            _ => None,
        };
        let Some(mamba) = mamba else { return weight.shape.clone() };
        match weight.part {
            Part::A | Part::D => vec![weight.shape[0], 1],
            Part::SsmNorm => {
                let groups = mamba.norm_groups.unwrap_or(1);
                vec![groups, weight.shape[0] / groups]
            }
            _ => weight.shape.clone(),
        }
    }

    /// The model as a GGUF file's weights are made from it: with those factors that the file keeps in them.
    pub fn with_stored_factors(&self) -> ModelSpec {
        let factors = match Family::of(self).dialect.multipliers {
            Multipliers::InWeights => self.factors.clone(),
            Multipliers::RootOfHidden | Multipliers::InKeys => Vec::new(),
        };
        ModelSpec { factors, ..self.clone() }
    }

    /// What a specification says however it is spelled: formats order rows differently, keep numbers as f32, take
    /// factors into weights, and leave out names of tokens.
    fn normal_form(&self) -> ModelSpec {
        let mut spec = self.clone();
        let in_weights = Family::of(self).dialect.multipliers == Multipliers::InWeights;
        let is_one = |factor: &Factor| factor.rows.iter().all(|(_, factor)| *factor == 1.0);
        spec.tied_embeddings &= !(in_weights && self.own_head().is_some());
        spec.factors.retain(|factor| !in_weights && !is_one(factor));
        (spec.context, spec.bos) = (None, None);
        spec.architecture.clear();
        spec.stop_tokens.clear();
        spec.notes.clear();
        let halves = spec.layers.iter_mut().flat_map(|layer| &mut layer.halves);
        for mixer in halves.flat_map(|half| &mut half.mixers) {
            match mixer {
                Mixer::Attention(AttentionSpec { rope: Some(rope), .. }) => normalize(rope),
                Mixer::DeltaNet(dims) => dims.groups = dims.heads,
                _ => {}
            }
        }
        spec
    }
}

fn normalize(rope: &mut Rope) {
    let narrow = |value: f64| f64::from(value as f32);
    (rope.pairs, rope.base) = (RopePairs::Halves, narrow(rope.base));
    match &mut rope.scaling {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => *factor = narrow(*factor),
        RopeScaling::Llama3 { .. } => (rope.scaling, rope.has_factors) = (RopeScaling::None, true),
        RopeScaling::Yarn { factor, original, fast, slow, magnitude, .. } => {
            [factor, original, fast, slow, magnitude].into_iter().for_each(|value| *value = narrow(*value));
        }
    }
}

/// What two specifications differ in, as a person wants to read it.
fn difference(want: &ModelSpec, read: &ModelSpec) -> Option<String> {
    if want == read {
        return None;
    }
    for (index, (want, read)) in want.layers.iter().zip(&read.layers).enumerate() {
        if want.norm_eps != read.norm_eps {
            return Some(format!("the epsilon of layer {index} is {}, not {}", want.norm_eps, read.norm_eps));
        }
        let pairs = want.halves.iter().zip(&read.halves);
        if let Some((want, read)) = pairs.into_iter().find(|(want, read)| want != read) {
            return Some(format!("layer {index} computes {want:?}, but would be read as {read:?}"));
        }
    }
    let heads = |spec: &ModelSpec| ModelSpec { layers: Vec::new(), ..spec.clone() };
    Some(format!("{:?} would be read as {:?}", heads(want), heads(read)))
}
