//! A model as its metadata describes it: sizes and stored types, whether or not weights are there.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use mambo_kernel::{WeightKey, WeightSource};
use mambo_model::{ModelSpec, PRESETS, Preset};
use mambo_tensor::DType;

use crate::export::{Container, Recipe};
use crate::model::Model;

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
pub struct TypeTable {
    weights: HashMap<String, (DType, u64)>,
    /// What had to be assumed, as a sentence.
    pub assumption: Option<String>,
}

impl Described {
    /// Opens a path, a hub id or a preset; the built-in model if there is no name.
    pub fn open(name: Option<&str>) -> Result<Described> {
        if let Some(text) = name.filter(|text| !Path::new(text).exists()) {
            if let Ok(preset) = Preset::named(text) {
                return Ok(Described {
                    name: format!("preset {} ({})", preset.name, preset.about),
                    spec: preset.spec()?,
                    model: None,
                });
            }
            if !text.contains(['/', '.']) {
                let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
                bail!("there is no file, folder or preset `{text}`; the presets are {}", known.join(", "));
            }
        }
        let model = Model::open_metadata(name)?;
        Ok(Described { name: model.name().to_owned(), spec: model.spec.clone(), model: Some(model) })
    }

    /// Whether weights are there.
    pub fn has_weights(&self) -> bool {
        self.model.as_ref().is_some_and(|m| m.checkpoint.tensors().next().is_some())
    }

    /// The stored types; 16-bit ones where there are no weights to ask.
    pub fn types(&self) -> Result<TypeTable> {
        let Some(model) = self.model.as_ref().filter(|_| self.has_weights()) else {
            let mut table = TypeTable::as_if(&self.spec, DType::BF16.name())?;
            table.assumption = Some("no weights here: bf16 is assumed for every matrix".to_owned());
            return Ok(table);
        };
        let bound = model.weights()?;
        let row = |w: &mambo_model::BoundWeight| (w.name().to_owned(), (w.dtype(), w.stored_bytes()));
        Ok(TypeTable { weights: bound.0.iter().map(row).collect(), assumption: None })
    }
}

impl TypeTable {
    /// The types `mambo quantize --type NAME` would write.
    pub fn as_if(spec: &ModelSpec, name: &str) -> Result<TypeTable> {
        let layout = Recipe::named(name, Container::Gguf)?.layout(spec, Container::Gguf)?;
        let mut weights: HashMap<String, (DType, u64)> = HashMap::new();
        for tensor in &layout.tensors {
            let row = weights.entry(tensor.weight.clone()).or_insert((tensor.encoding(), 0));
            row.1 += tensor.bytes();
        }
        let mut assumption = format!("as if quantised to {name}");
        layout.notes.iter().for_each(|note| assumption += &format!("; {note}"));
        Ok(TypeTable { weights, assumption: Some(assumption) })
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
