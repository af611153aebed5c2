//! Where a weight lies in a checkpoint: under which of its names, and in which rows.
//!
//! Must not know how values are stored.

use mambo_checkpoint::{Checkpoint, Format, TensorInfo};
use mambo_kernel::WeightUse;

use crate::error::ModelError;
use crate::families::Family;
use crate::families::spelling::{Pick, StoredRows};
use crate::names::{Part, Place};
use crate::spec::ModelSpec;
use crate::weights::Weight;

/// How a stored tensor has to look for the weight to be taken out of it.
pub(crate) struct Arranged {
    pub shape: Vec<usize>,
    pub picks: Vec<Pick>,
    pub is_transposed: bool,
}

impl Arranged {
    /// `stored` is the shape of the tensor that was found.
    pub fn of(spec: &ModelSpec, weight: &Weight, rows: StoredRows, stored: &[usize]) -> Arranged {
        let mut shape = weight.shape.clone();
        let dimension = if is_picked_by_element(weight) { shape.len() - 1 } else { shape.len() - 2 };
        let count = shape[dimension];
        let every_second = |which| vec![Pick { period: 2, start: which, count: 1 }];
        let picks = match rows {
            StoredRows::All | StoredRows::Columns => Vec::new(),
            StoredRows::Half(which) => vec![Pick { period: 2 * count, start: which * count, count }],
            StoredRows::Alternate(which) | StoredRows::AlternateColumns(which) => every_second(which),
            StoredRows::Pieces(pieces) => {
                let Place::Layer(index) = weight.place else { unreachable!("pieces are of layers") };
                let mixer = spec.layers[index].mixers().next().expect("a layer has a mixer");
                pieces(mixer, stored.first().copied().unwrap_or(1))
            }
        };
        if let Some(Pick { period, .. }) = picks.first() {
            let taken: usize = picks.iter().map(|pick| pick.count).sum();
            shape[dimension] = count / taken.max(1) * period;
        }
        let is_transposed = matches!(rows, StoredRows::Columns | StoredRows::AlternateColumns(_));
        if is_transposed {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        Arranged { shape, picks, is_transposed }
    }
}

/// Vectors are picked from element by element; taps are rows of channels.
pub(crate) fn is_picked_by_element(weight: &Weight) -> bool {
    weight.part.usage() == WeightUse::Vector && weight.part != Part::ConvWeight
}

/// The picked rows, each of so many units: for every pick its rows of all periods.
pub(crate) fn pick<T: Copy>(picks: &[Pick], stored: &[T], row: usize) -> Vec<T> {
    let mut out = Vec::new();
    for pick in picks {
        for period in stored.chunks_exact(pick.period * row) {
            out.extend_from_slice(&period[pick.start * row..][..pick.count * row]);
        }
    }
    out
}

/// The tensors of a weight, and which of their rows are its own.
pub(crate) fn locate<'c>(
    checkpoint: &'c Checkpoint,
    family: &Family,
    weight: &Weight,
    depth: usize,
) -> Result<(Vec<&'c TensorInfo>, StoredRows), ModelError> {
    let file = || checkpoint.source().to_owned();
    if checkpoint.format() == Format::Gguf {
        let mut names = family.gguf_names(weight.place, weight.part, depth);
        let found = names.find_map(|(name, rows)| Some((vec![checkpoint.tensor(&name)?], rows)));
        return found.ok_or_else(|| ModelError::MissingTensor {
            file: file(),
            tensor: family.gguf_name(weight.place, weight.part, depth),
            weight: weight.name.clone(),
            remedy: "convert the model again with a current converter".to_owned(),
        });
    }
    let mut tried = Vec::new();
    for (name, spelling) in family.tensor_names(weight.place, weight.part) {
        let first = name.replace("{e}", "0");
        tried.push(first.clone());
        let Some(tensor) = values_or_codes(checkpoint, &first) else { continue };
        if first == name {
            return Ok((vec![tensor], spelling.rows));
        }
        let expert = |e: usize| {
            let name = name.replace("{e}", &e.to_string());
            values_or_codes(checkpoint, &name).ok_or_else(|| missing(file(), name, weight))
        };
        let tensors = (0..weight.shape[0]).map(expert).collect::<Result<_, _>>()?;
        return Ok((tensors, spelling.rows));
    }
    Err(missing(file(), likeliest(checkpoint, tried), weight))
}

/// Of the names a tensor may have, the one that begins as other tensors of the checkpoint do.
fn likeliest(checkpoint: &Checkpoint, names: Vec<String>) -> String {
    let start = |name: &str| name.split('.').next().map(str::to_owned);
    let begins_alike = |name: &&String| checkpoint.tensors().any(|tensor| start(&tensor.name) == start(name));
    names.iter().find(begins_alike).or(names.first()).cloned().unwrap_or_default()
}

fn missing(file: String, tensor: String, weight: &Weight) -> ModelError {
    let remedy = "download the missing file of the model again".to_owned();
    ModelError::MissingTensor { file, tensor, weight: weight.name.clone(), remedy }
}

/// The tensor of that name, or its packed codes.
fn values_or_codes<'c>(checkpoint: &'c Checkpoint, name: &str) -> Option<&'c TensorInfo> {
    checkpoint.tensor(name).or_else(|| {
        let module = name.strip_suffix(".weight")?;
        let packed = checkpoint.tensor(&format!("{name}_packed"));
        packed.or_else(|| checkpoint.tensor(&format!("{module}.qweight")))
    })
}
