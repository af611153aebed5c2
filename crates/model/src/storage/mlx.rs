//! Groups as MLX writes them: codes packed into words, with scales and, where they are affine, biases.
//!
//! Must not know how codes are rewritten.

use mambo_checkpoint::TensorInfo;
use mambo_tensor::{Affine, AffineScale, DType};

use super::modelopt::{divides, mxfp4_blocks, nvfp4_blocks};
use super::{Dims, Files, Form, Module};
use crate::error::ModelError;

/// `weight` u32, `scales`, and `biases` unless the codes are floats.
pub(super) fn read<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let scales = files.want_beside(module, "scales", codes)?;
    if codes.dtype != DType::U32 {
        let problem =
            format!("is {} with scales (`{}`), but codes are packed in u32", codes.dtype, scales.name);
        return Err(files.unsupported(codes, problem));
    }
    if scales.dtype == DType::U8 {
        return floats(files, module, codes, scales, dims);
    }
    let biases = files.want_beside(module, "biases", codes)?;
    let (bits, group) = parameters(files, module, codes, scales, dims)?;
    let affine = AffineScale::of(scales.dtype).and_then(|scale| Affine::new(bits, group, scale));
    let Some(affine) = affine else {
        let problem = match AffineScale::of(scales.dtype) {
            None => format!("has scales of type {}, but f16, bf16 or f32 is supported", scales.dtype),
            Some(_) => format!(
                "has codes of {bits} bits in groups of {group}, but {:?} bits in groups of {:?} are supported",
                Affine::BITS,
                Affine::GROUPS
            ),
        };
        return Err(files.unsupported(codes, problem));
    };
    divides(files, codes, dims, group)?;
    files.check(codes, dims, &dims.with_cols(dims.cols() * bits / 32), &[DType::U32])?;
    let shape = dims.with_cols(dims.cols() / group);
    files.check(scales, dims, &shape, &[scales.dtype])?;
    files.check(biases, dims, &shape, &[scales.dtype])?;
    Ok(Module {
        dtype: DType::Affine(affine),
        form: Form::Affine(affine),
        codes,
        beside: vec![scales, biases],
        row_scales: None,
        factors: vec![1.0],
        factor_tensors: Vec::new(),
    })
}

/// Float codes of four bits: groups of 16 are NVFP4, of 32 MXFP4.
fn floats<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    scales: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let (bits, group) = parameters(files, module, codes, scales, dims)?;
    match (bits, group) {
        (4, 16) => nvfp4_blocks(files, codes, scales, None, dims),
        (4, 32) => mxfp4_blocks(files, codes, scales, dims),
        _ => {
            let problem = format!(
                "has float codes of {bits} bits in groups of {group}, but 4 bits in groups of 16 or 32 are supported"
            );
            Err(files.unsupported(codes, problem))
        }
    }
}

/// Bits of a code and values of a group: what the config says, else what the shapes say.
fn parameters(
    files: &Files,
    module: &str,
    codes: &TensorInfo,
    scales: &TensorInfo,
    dims: Dims,
) -> Result<(usize, usize), ModelError> {
    let (bits, group) = files.mlx.of(module);
    let bits = match bits {
        Some(bits) => bits,
        None => {
            let stored = codes.shape.row_elems().saturating_mul(32);
            whole_ratio(stored, dims.cols()).ok_or_else(|| {
                let want = format!("{} columns of codes with a whole number of bits", dims.cols());
                files.wrong_shape(codes, dims, want)
            })?
        }
    };
    let group = match group {
        Some(group) => group,
        None => whole_ratio(dims.cols(), scales.shape.row_elems()).ok_or_else(|| {
            files.wrong_shape(scales, dims, format!("a scale for each group of {} columns", dims.cols()))
        })?,
    };
    Ok((bits, group))
}

fn whole_ratio(a: usize, b: usize) -> Option<usize> {
    (b > 0 && a > 0 && a.is_multiple_of(b)).then(|| a / b)
}
