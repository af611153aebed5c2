//! A model as its metadata describes it: sizes and stored types, whether or not weights are there.

use std::collections::HashMap;
#[cfg(any(unix, windows))]
use std::path::Path;

use mambo_kernel::{WeightKey, WeightSource};
use mambo_model::{BoundWeight, ModelSpec};
#[cfg(any(unix, windows))]
use mambo_model::{PRESETS, Preset};
use mambo_tensor::DType;

#[cfg(any(unix, windows))]
use crate::OpenOptions;
use crate::{Model, RuntimeError};

/// A described model.
pub struct Described {
    /// What messages call it.
    pub name: String,
    /// Layers and sizes.
    pub spec: ModelSpec,
    /// The open files; a preset has none.
    pub model: Option<Model>,
}

/// Element type and bytes of every weight, by canonical name.
#[derive(Clone, Debug)]
pub struct TypeTable {
    weights: HashMap<String, (DType, u64)>,
    /// What had to be assumed, as a sentence.
    pub assumption: Option<String>,
}

impl Described {
    /// Opens a path or a preset; weights need not be there.
    #[cfg(any(unix, windows))]
    pub fn open(name: &str) -> Result<Described, RuntimeError> {
        if !Path::new(name).exists() {
            if let Ok(preset) = Preset::named(name) {
                return Ok(Described {
                    name: format!("preset {} ({})", preset.name, preset.about),
                    spec: preset.spec()?,
                    model: None,
                });
            }
            if !name.contains(['/', '.']) {
                let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
                return Err(RuntimeError::UnknownPreset { name: name.to_owned(), known: known.join(", ") });
            }
        }
        Ok(Described::of(Model::open(name, &OpenOptions { metadata_only: true })?))
    }

    /// A model that is open already.
    pub fn of(model: Model) -> Described {
        Described { name: model.name().to_owned(), spec: model.spec.clone(), model: Some(model) }
    }

    /// Whether weights are there.
    pub fn has_weights(&self) -> bool {
        self.model.as_ref().is_some_and(Model::has_weights)
    }

    /// The stored types; 16-bit ones where there are no weights to ask.
    pub fn types(&self) -> Result<TypeTable, RuntimeError> {
        let Some(model) = self.model.as_ref().filter(|_| self.has_weights()) else {
            return Ok(TypeTable::without_weights(&self.spec));
        };
        let bound = model.weights()?;
        let row = |w: &BoundWeight| (w.name().to_owned(), w.dtype(), w.stored_bytes());
        Ok(TypeTable::new(bound.iter().map(row), None))
    }
}

impl TypeTable {
    /// A table of weights, types and bytes; a weight in several tensors has a row for each.
    pub fn new(
        rows: impl IntoIterator<Item = (String, DType, u64)>,
        assumption: Option<String>,
    ) -> TypeTable {
        let mut weights: HashMap<String, (DType, u64)> = HashMap::new();
        for (weight, dtype, bytes) in rows {
            weights.entry(weight).or_insert((dtype, 0)).1 += bytes;
        }
        TypeTable { weights, assumption }
    }

    fn without_weights(spec: &ModelSpec) -> TypeTable {
        let rows = spec.weights().into_iter().map(|weight| {
            let dtype = if weight.is_quantizable() { DType::BF16 } else { DType::F32 };
            let bytes = weight.shape.iter().product::<usize>() as u64 * dtype.block_bytes() as u64;
            (weight.name, dtype, bytes)
        });
        TypeTable::new(rows, Some("no weights here: bf16 is assumed for every matrix".to_owned()))
    }

    /// The element type of a weight.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.weights.get(name).map(|w| w.0)
    }

    /// The stored bytes of a weight.
    pub fn bytes(&self, name: &str) -> u64 {
        self.weights.get(name).map_or(0, |w| w.1)
    }

    /// Bytes of weights as an engine counts them: a weight used in two forms is held twice.
    pub fn key_bytes<'k>(&self, keys: impl IntoIterator<Item = &'k WeightKey>) -> u64 {
        keys.into_iter().map(|key| self.bytes(&key.name)).sum()
    }
}
