//! What a file of a specification holds: its tensors and the metadata that describes it. The words are the family's.
//!
//! Must not know values of weights, tokenizers or element types.

mod gguf;
mod order;

use mambo_kernel::WeightUse;
use serde_json::Value;

use crate::error::ModelError;
use crate::families::Family;
use crate::families::spelling::StoredRows;
use crate::names::Part;
use crate::spec::ModelSpec;
use crate::weights::Weight;

pub use order::Order;

/// One tensor of a file that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportTensor {
    /// Name in the file.
    pub name: String,
    /// Canonical name of the weight it holds.
    pub weight: String,
    /// What that weight is in its layer.
    pub part: Part,
    /// Canonical name of a second weight that it holds, whose rows take turns with the first one's.
    pub second: Option<String>,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Row of the weight it starts with: experts may have a tensor each.
    pub first_row: usize,
    /// Whether it may be stored in a smaller type; the others are f32 in every file.
    pub quantizable: bool,
    /// Order of its rows.
    pub rows: Order,
    /// Order of its columns.
    pub columns: Order,
    /// Its values, where they follow from the description and no weight holds them.
    pub values: Option<Vec<f32>>,
}

impl ModelSpec {
    /// A config.json that describes this model.
    pub fn hf_config(&self) -> Result<Value, ModelError> {
        let write = Family::of(self).write_config.ok_or_else(|| self.not_written("safetensors folders"))?;
        Ok(write(self))
    }

    /// Refuses a family whose safetensors folders keep weights otherwise than they are used.
    pub fn check_hf_tensors(&self) -> Result<(), ModelError> {
        let family = Family::of(self);
        let is_plain = |weight: &Weight| {
            let is_whole = |rows: StoredRows| matches!(rows, StoredRows::All);
            let first = family.tensor_names(weight.place, weight.part).next();
            let factor = self.factor(weight.part).is_none_or(|f| f.rows.iter().all(|(_, f)| *f == 1.0));
            first.is_some_and(|(_, spelling)| is_whole(spelling.rows))
                && factor
                && !family.plus_one.contains(&weight.part)
        };
        match stored(&self.weights()).all(is_plain) {
            true => Ok(()),
            false => Err(self.not_written("safetensors folders")),
        }
    }

    fn not_written(&self, what: &'static str) -> ModelError {
        ModelError::NotWritten { family: self.architecture.clone(), what }
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
                first_row: expert * rows,
                ..plain(weight, shape.clone())
            }));
        }
        tensors
    }
}

/// A tensor that holds a weight as it is used, under no name yet.
fn plain(weight: &Weight, shape: Vec<usize>) -> ExportTensor {
    ExportTensor {
        name: String::new(),
        weight: weight.name.clone(),
        part: weight.part,
        second: None,
        shape,
        first_row: 0,
        quantizable: weight.is_quantizable(),
        rows: Order::Same,
        columns: Order::Same,
        values: None,
    }
}

/// Weights that files hold, each once.
fn stored(weights: &[Weight]) -> impl Iterator<Item = &Weight> {
    weights.iter().filter(|weight| weight.constant.is_none() && weight.part != Part::TiedHead)
}
