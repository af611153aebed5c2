//! How the tensors of one module form a weight: plain values, or codes with scales beside them. Decided for
//! each module from the tensors that are there, never from one setting for a whole file.
//!
//! | tensors beside the codes | codes | becomes |
//! |---|---|---|
//! | none | plain types and ggml blocks | itself |
//! | `weight_scale`, `weight_scale_2` | `weight` u8 | `nvfp4` and a factor |
//! | `weight_scale`, `weight_global_scale` | `weight_packed` u8 | `nvfp4` and a factor, the reciprocal of what is stored |
//! | `weight_scale` | `weight` f8_e4m3 | itself and a factor, or one for each row |
//! | `weight_scale` u8 | `weight_packed` u8 | `mxfp4` |
//! | `X_scales` u8 | `X_blocks` u8 | `mxfp4` |
//! | `scales`, `biases` | `weight` u32 | `affine4g64` and its kin |
//! | `scales` u8 | `weight` u32 | `mxfp4`, or `nvfp4` where groups are 16 |
//! | `qzeros`, `scales` | `qweight` i32 (AWQ, GPTQ) | `affine4g128_f32` and its kin, or f16 |
//! | `weight_scale_inv` | `weight` f8_e4m3 | bf16 |
//! | `X.scale` or `X.weight.scale` in GGUF | any | itself and a factor |
//!
//! Where the experts of one layer differ in type, all are brought to the smallest type that holds every value
//! of each (`common_type`), part by part as they are read; the factors stay beside them.
//!
//! `input_scale` serves products with quantised activations. Activations stay floats here, so nobody reads it.

mod files;
mod mlx;
mod modelopt;
mod packed;
mod rewrite;
mod squares;
mod unpack;

use std::ops::Range;

use mambo_checkpoint::{Format, TensorInfo};
use mambo_kernel::WeightUse;
use mambo_tensor::DType;

use crate::error::ModelError;
use crate::weights::Weight;

pub(crate) use files::Files;
pub(crate) use packed::BITS as PACKED_BITS;
pub(crate) use rewrite::{BadScale, Form, widen};

/// Most bytes of a part that is rewritten, where a matrix can be cut: what a loader holds twice at a time.
const PART_BYTES: u64 = 4 << 20;

/// The dimensions that a module has to have.
#[derive(Clone, Copy)]
pub(crate) struct Dims<'w> {
    /// The weight it belongs to.
    pub weight: &'w Weight,
    /// Shape of the module's values: two dimensions, or three for stacked experts.
    pub want: &'w [usize],
}

impl Dims<'_> {
    fn cols(&self) -> usize {
        self.want.last().copied().unwrap_or(1)
    }

    fn rows(&self) -> usize {
        self.want.iter().product::<usize>() / self.cols().max(1)
    }

    /// Experts stacked in the module; 1 where it is one matrix.
    fn experts(&self) -> usize {
        if self.want.len() > 2 { self.want[0] } else { 1 }
    }

    /// The shape with another number of columns.
    fn with_cols(&self, cols: usize) -> Vec<usize> {
        let mut shape = self.want.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = cols;
        }
        shape
    }
}

/// A module whose tensors were found and fit together.
pub(crate) struct Module<'c> {
    /// Type its values have once a part is read.
    pub dtype: DType,
    /// How stored bytes become that type.
    pub form: Form,
    /// The tensor that holds values or codes.
    pub codes: &'c TensorInfo,
    /// Tensors with a number for each group, in the order the form wants them.
    pub beside: Vec<&'c TensorInfo>,
    /// A tensor with a factor for each row.
    pub row_scales: Option<&'c TensorInfo>,
    /// Factors on all values: one, or one for each expert.
    pub factors: Vec<f32>,
    /// Tensors that the factors were read from.
    pub factor_tensors: Vec<&'c TensorInfo>,
}

/// Bytes of a tensor that belong to one part.
#[derive(Clone)]
pub(crate) struct Span<'c> {
    /// The tensor.
    pub tensor: &'c TensorInfo,
    /// Its bytes, counted from the tensor's first.
    pub range: Range<u64>,
}

/// One part of a weight as the files hold it.
pub(crate) struct StoredPart<'c> {
    /// How its bytes become values of a type.
    pub form: Form,
    /// That type.
    pub dtype: DType,
    /// Values or codes.
    pub codes: Span<'c>,
    /// What lies beside them.
    pub beside: Vec<Span<'c>>,
    /// Factor on every value.
    pub factor: f32,
    /// Factors on the values of each row.
    pub row_scales: Option<Span<'c>>,
}

/// Finds what lies beside a tensor and checks that it fits.
pub(crate) fn read<'c>(
    files: &Files<'c>,
    tensor: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    // Norms, biases and taps are never quantised, and their names are no modules'.
    if dims.weight.part.usage() == WeightUse::Vector {
        return plain(files, tensor);
    }
    if files.checkpoint.format() == Format::Gguf {
        return gguf(files, tensor, dims);
    }
    if let Some(module) = tensor.name.strip_suffix("_blocks") {
        return modelopt::mxfp4_experts(files, module, tensor, dims);
    }
    if let Some(module) = tensor.name.strip_suffix(".qweight") {
        return packed::read(files, module, tensor, dims);
    }
    let Some(module) = tensor.name.strip_suffix(".weight").or(tensor.name.strip_suffix(".weight_packed"))
    else {
        return plain(files, tensor);
    };
    for (suffix, what) in [
        ("pre_quant_scale", "scales on the activations before the product"),
        ("weight_zero_point", "zero points"),
    ] {
        if files.beside(module, suffix).is_some() {
            let problem = format!("has {what} (`{module}.{suffix}`), which is not supported");
            return Err(files.unsupported(tensor, problem));
        }
    }
    if let Some(scales) = files.beside(module, "weight_scale_inv") {
        return squares::read(files, tensor, scales, dims);
    }
    if tensor.name.ends_with("_packed") {
        return modelopt::packed(files, module, tensor, dims);
    }
    if files.beside(module, "scales").is_some() || tensor.dtype == DType::U32 {
        return mlx::read(files, module, tensor, dims);
    }
    match tensor.dtype {
        DType::U8 => modelopt::nvfp4(files, module, tensor, dims),
        DType::F8E4M3 => modelopt::fp8(files, module, tensor, dims),
        dtype => match files.beside(module, "weight_scale") {
            None => plain(files, tensor),
            Some(scale) => {
                let problem =
                    format!("is {dtype} and has a scale (`{}`), which is not supported", scale.name);
                Err(files.unsupported(tensor, problem))
            }
        },
    }
}

fn plain<'c>(files: &Files<'c>, tensor: &'c TensorInfo) -> Result<Module<'c>, ModelError> {
    let dtype = tensor.dtype;
    match dtype {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => {}
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => {}
        _ => return Ok(as_stored(tensor)),
    }
    let problem = format!("holds {dtype} integers, which are not supported as weights");
    Err(files.unsupported(tensor, problem))
}

fn as_stored(tensor: &TensorInfo) -> Module<'_> {
    Module {
        dtype: tensor.dtype,
        form: Form::AsStored,
        codes: tensor,
        beside: Vec::new(),
        row_scales: None,
        factors: vec![1.0],
        factor_tensors: Vec::new(),
    }
}

/// Blocks with a factor of the whole tensor, or of each expert, in a tensor of its own.
fn gguf<'c>(files: &Files<'c>, tensor: &'c TensorInfo, dims: Dims) -> Result<Module<'c>, ModelError> {
    let module = plain(files, tensor)?;
    let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
    let Some(scale) = files.beside(stem, "scale").or_else(|| files.beside(&tensor.name, "scale")) else {
        return Ok(module);
    };
    let factors = files.factors(scale, dims)?;
    Ok(Module { factors, factor_tensors: vec![scale], ..module })
}

/// Cuts a module into its parts: one per expert, so that a loader needs little memory at a time. A matrix
/// that has to be rewritten is cut as well, if it may be.
pub(crate) fn split<'c>(module: &Module<'c>, dims: Dims, may_cut: bool) -> Vec<StoredPart<'c>> {
    let parts = match (dims.experts(), module.form) {
        (1, Form::AsStored | Form::NegExp | Form::PlusOne | Form::Transposed(_)) => 1,
        // Their bytes do not lie row by row.
        (1, Form::Packed(_) | Form::Squares(_)) => 1,
        (1, _) if !may_cut => 1,
        (1, _) => even_parts(dims.rows(), module.codes.byte_len()),
        (experts, _) => experts,
    };
    let span = |tensor: &'c TensorInfo, index: usize| {
        let (bytes, index) = (tensor.byte_len() / parts as u64, index as u64);
        Span { tensor, range: index * bytes..(index + 1) * bytes }
    };
    let part = |index: usize| StoredPart {
        form: module.form,
        dtype: module.dtype,
        codes: span(module.codes, index),
        beside: module.beside.iter().map(|tensor| span(tensor, index)).collect(),
        factor: if module.factors.len() == 1 { module.factors[0] } else { module.factors[index] },
        row_scales: module.row_scales.map(|tensor| span(tensor, index)),
    };
    (0..parts).map(part).collect()
}

/// The smallest type that holds every value of all these: what the parts of one weight are brought to where
/// they differ. Eight significant bits are enough for all small floats and for products of two of them.
pub(crate) fn common_type(dtypes: &[DType]) -> DType {
    let fits_bf16 = |dtype: &DType| {
        matches!(dtype, DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::NVFP4 | DType::MXFP4)
    };
    match dtypes {
        [first, rest @ ..] if rest.iter().all(|dtype| dtype == first) => *first,
        all if all.iter().all(fits_bf16) => DType::BF16,
        _ => DType::F32,
    }
}

/// How many weights are held in a larger type than they are stored in, as sentences for a person.
pub(crate) fn decoded(forms: impl Iterator<Item = Form>) -> Vec<String> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for what in forms.filter_map(Form::decoded) {
        match counts.iter_mut().find(|(own, _)| *own == what) {
            Some((_, count)) => *count += 1,
            None => counts.push((what, 1)),
        }
    }
    let note = |(what, count)| format!("{count} weights {what}, which takes more memory");
    counts.into_iter().map(note).collect()
}

/// The fewest equal parts of whole rows that are small enough.
fn even_parts(rows: usize, bytes: u64) -> usize {
    let least = usize::try_from(bytes.div_ceil(PART_BYTES).max(1)).unwrap_or(usize::MAX);
    (least..=rows).find(|parts| rows.is_multiple_of(*parts)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::{common_type, even_parts};
    use mambo_tensor::DType;

    #[test]
    fn a_common_type_holds_them_all() {
        assert_eq!(common_type(&[DType::NVFP4; 3]), DType::NVFP4);
        assert_eq!(common_type(&[DType::NVFP4, DType::F8E4M3, DType::NVFP4]), DType::BF16);
        assert_eq!(common_type(&[DType::BF16, DType::MXFP4]), DType::BF16);
        assert_eq!(common_type(&[DType::BF16, DType::F16]), DType::F32);
        assert_eq!(common_type(&[DType::F8E4M3, DType::F32]), DType::F32);
    }

    #[test]
    fn parts_are_equal_and_small() {
        assert_eq!(even_parts(64, 1000), 1);
        assert_eq!(even_parts(131072, 131072 * 1344), 64);
        assert_eq!(even_parts(7, 9 << 20), 7);
        assert_eq!(even_parts(0, 0), 1);
    }
}
