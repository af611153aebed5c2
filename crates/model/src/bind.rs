//! Canonical weights find their tensors in a checkpoint; names, shapes and types are checked here, once.
//!
//! Must not know how a backend holds a weight nor what it computes with it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use mambo_checkpoint::{Checkpoint, Format, TensorInfo};
use mambo_kernel::{WeightSource, WeightUse};
use mambo_tensor::{DType, decode_row};

use crate::error::ModelError;
use crate::names::{Part, Transform};
use crate::spec::ModelSpec;
use crate::weights::Weight;

/// Every weight of a model with its tensors, by canonical name.
pub struct WeightTable<'c> {
    weights: Vec<BoundWeight<'c>>,
    by_name: HashMap<String, usize>,
}

/// One weight: the stored parts that stack along its outermost dimension.
pub struct BoundWeight<'c> {
    weight: Weight,
    dtype: DType,
    transform: Transform,
    checkpoint: &'c Checkpoint,
    parts: Vec<(&'c TensorInfo, Range<usize>)>,
}

/// Finds every weight of `spec` in `checkpoint`.
pub fn bind<'c>(checkpoint: &'c Checkpoint, spec: &ModelSpec) -> Result<WeightTable<'c>, ModelError> {
    let depth = spec.layers.len();
    let weights: Vec<BoundWeight> = spec
        .weights()
        .into_iter()
        .map(|weight| bind_one(checkpoint, weight, depth))
        .collect::<Result<_, _>>()?;
    let by_name = weights.iter().enumerate().map(|(i, w)| (w.name().to_owned(), i)).collect();
    Ok(WeightTable { weights, by_name })
}

impl<'c> WeightTable<'c> {
    /// The weight of a canonical name.
    pub fn get(&self, name: &str) -> Option<&BoundWeight<'c>> {
        self.by_name.get(name).map(|&index| &self.weights[index])
    }

    /// Every weight, in the order a forward pass meets them.
    pub fn iter(&self) -> impl Iterator<Item = &BoundWeight<'c>> {
        self.weights.iter()
    }

    /// Bytes of all weights in the files.
    pub fn stored_bytes(&self) -> u64 {
        self.weights.iter().map(BoundWeight::stored_bytes).sum()
    }
}

impl BoundWeight<'_> {
    /// Canonical name.
    pub fn name(&self) -> &str {
        &self.weight.name
    }

    /// What it is in its layer.
    pub fn role(&self) -> Part {
        self.weight.part
    }

    /// How a backend holds it by its main use; a tied embedding is multiplied as well.
    pub fn usage(&self) -> WeightUse {
        self.weight.part.usage()
    }

    /// How stored values become the weight's.
    pub fn transform(&self) -> Transform {
        self.transform
    }

    /// Names of the tensors it is made of, each once.
    pub fn tensor_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.parts.iter().map(|(tensor, _)| tensor.name.as_str()).collect();
        names.dedup();
        names
    }

    /// Bytes it takes in the files.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, range)| range.len() as u64).sum()
    }

    /// All parts, decoded to f32.
    pub fn to_f32(&self) -> Result<Vec<f32>, ModelError> {
        let mut values = Vec::new();
        for index in 0..self.part_count() {
            let bytes = self.part(index);
            let start = values.len();
            values.resize(start + self.elems() / self.part_count(), 0.0);
            decode_row(self.dtype, &bytes, &mut values[start..])
                .map_err(|e| self.unreadable(e.to_string()))?;
        }
        Ok(values)
    }

    fn elems(&self) -> usize {
        self.weight.shape.iter().product()
    }

    fn unreadable(&self, problem: String) -> ModelError {
        ModelError::UnsupportedTensor {
            file: self.checkpoint.source().to_owned(),
            tensor: self.parts[0].0.name.clone(),
            problem: format!("cannot be decoded: {problem}"),
        }
    }
}

impl WeightSource for BoundWeight<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.weight.shape
    }

    fn part_count(&self) -> usize {
        self.parts.len()
    }

    fn part(&self, index: usize) -> Cow<'_, [u8]> {
        let (tensor, range) = &self.parts[index];
        let bytes = &self.checkpoint.bytes(tensor)[range.clone()];
        match self.transform {
            Transform::None => Cow::Borrowed(bytes),
            Transform::NegExp => Cow::Owned(neg_exp(tensor.dtype, bytes, self.elems() / self.parts.len())),
        }
    }

    fn release(&self, index: usize) {
        let (tensor, range) = &self.parts[index];
        self.checkpoint.release(tensor, range.clone());
    }
}

/// `-exp(x)` of every stored value, as f32 bytes.
fn neg_exp(dtype: DType, bytes: &[u8], elems: usize) -> Vec<u8> {
    let mut values = vec![0.0; elems];
    decode_row(dtype, bytes, &mut values).expect("the shape was checked when the weight was bound");
    values.iter().flat_map(|x| (-x.exp()).to_le_bytes()).collect()
}

fn bind_one<'c>(
    checkpoint: &'c Checkpoint,
    weight: Weight,
    depth: usize,
) -> Result<BoundWeight<'c>, ModelError> {
    let tensors = locate(checkpoint, &weight, depth)?;
    let first = tensors[0];
    for tensor in &tensors {
        check_storage(checkpoint, tensor)?;
        check_shape(checkpoint, &weight, tensor, tensors.len())?;
        if tensor.dtype != first.dtype {
            return Err(ModelError::MixedTypes {
                file: checkpoint.source().to_owned(),
                weight: weight.name,
                first: first.name.clone(),
                first_type: first.dtype,
                other: tensor.name.clone(),
                other_type: tensor.dtype,
            });
        }
    }
    let stored_as_logarithm = weight.part == Part::A && checkpoint.format() == Format::Safetensors;
    let (transform, dtype) = match stored_as_logarithm {
        true => (Transform::NegExp, DType::F32),
        false => (Transform::None, first.dtype),
    };
    let parts = split_parts(&weight, &tensors);
    Ok(BoundWeight { weight, dtype, transform, checkpoint, parts })
}

/// One part per expert, also where a file stacks them: a loader then needs little memory at a time.
fn split_parts<'c>(weight: &Weight, tensors: &[&'c TensorInfo]) -> Vec<(&'c TensorInfo, Range<usize>)> {
    if let [tensor] = tensors
        && weight.part.usage() == WeightUse::Experts
    {
        let experts = weight.shape[0];
        let bytes = tensor.byte_len() / experts;
        return (0..experts).map(|e| (*tensor, e * bytes..(e + 1) * bytes)).collect();
    }
    tensors.iter().map(|tensor| (*tensor, 0..tensor.byte_len())).collect()
}

fn locate<'c>(
    checkpoint: &'c Checkpoint,
    weight: &Weight,
    depth: usize,
) -> Result<Vec<&'c TensorInfo>, ModelError> {
    let file = || checkpoint.source().to_owned();
    if checkpoint.format() == Format::Gguf {
        let name = weight.place.gguf(weight.part, depth);
        return match checkpoint.tensor(&name) {
            Some(tensor) => Ok(vec![tensor]),
            None => Err(ModelError::MissingTensor {
                file: file(),
                tensor: name,
                weight: weight.name.clone(),
                remedy: "convert the model again with a current converter".to_owned(),
            }),
        };
    }
    let mut usual = None;
    for name in weight.place.hf(weight.part) {
        let first = name.replace("{e}", "0");
        usual.get_or_insert(first.clone());
        let Some(tensor) = checkpoint.tensor(&first) else { continue };
        if first == name {
            return Ok(vec![tensor]);
        }
        let expert = |e: usize| {
            let name = name.replace("{e}", &e.to_string());
            checkpoint.tensor(&name).ok_or_else(|| missing(file(), name, weight))
        };
        return (0..weight.shape[0]).map(expert).collect();
    }
    Err(missing(file(), usual.unwrap_or_default(), weight))
}

fn missing(file: String, tensor: String, weight: &Weight) -> ModelError {
    let remedy = "download the missing file of the model again".to_owned();
    ModelError::MissingTensor { file, tensor, weight: weight.name.clone(), remedy }
}

/// Refuses tensors whose values need more than themselves to be read.
fn check_storage(checkpoint: &Checkpoint, tensor: &TensorInfo) -> Result<(), ModelError> {
    const SCALES: [&str; 5] = ["weight_scale", "weight_scale_inv", "scales", "weight_global_scale", "scale"];
    let stem = tensor.name.strip_suffix("weight");
    let scale = stem.and_then(|stem| {
        SCALES.iter().map(|s| format!("{stem}{s}")).find(|name| checkpoint.tensor(name).is_some())
    });
    let problem = match (scale, tensor.dtype) {
        (Some(scale), _) => format!("is quantised with separate scales (`{scale}`), which is not supported"),
        (None, DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool)
        | (None, DType::I8 | DType::I16 | DType::I32 | DType::I64) => {
            format!("holds {} integers, which are not supported as weights", tensor.dtype)
        }
        _ => return Ok(()),
    };
    Err(ModelError::UnsupportedTensor {
        file: checkpoint.source().to_owned(),
        tensor: tensor.name.clone(),
        problem,
    })
}

fn check_shape(
    checkpoint: &Checkpoint,
    weight: &Weight,
    tensor: &TensorInfo,
    parts: usize,
) -> Result<(), ModelError> {
    let want: &[usize] =
        if parts > 1 || is_single_expert(weight, tensor) { &weight.shape[1..] } else { &weight.shape };
    let got = tensor.shape.dims();
    let fits = match weight.part.usage() {
        // Files differ in how they fold small weights; only their order counts.
        WeightUse::Vector if want.len() == 1 => tensor.shape.elems() == want[0],
        WeightUse::Vector => got.iter().filter(|&&d| d != 1).eq(want.iter().filter(|&&d| d != 1)),
        _ => got == want,
    };
    match fits {
        true => Ok(()),
        false => Err(ModelError::WrongShape {
            file: checkpoint.source().to_owned(),
            tensor: tensor.name.clone(),
            weight: weight.name.clone(),
            want: format!("{want:?}"),
            got: format!("{got:?}"),
        }),
    }
}

/// Whether the tensor is the one expert of a layer, stored without the dimension of experts.
fn is_single_expert(weight: &Weight, tensor: &TensorInfo) -> bool {
    weight.part.usage() == WeightUse::Experts && weight.shape[0] == 1 && tensor.shape.rank() == 2
}
