//! NVFP4 and FP8 as ModelOpt writes them, and as llm-compressor ("compressed-tensors") does.
//!
//! Must not know how codes are rewritten.

use mambo_checkpoint::TensorInfo;
use mambo_tensor::DType;
use mambo_tensor::blocks::{Block, Mxfp4, Nvfp4, pairs};

use super::{Dims, Files, Form, Module};
use crate::error::ModelError;

/// Values that share a scale in NVFP4, and in one block of ours.
const NVFP4_GROUP: usize = Nvfp4::GROUP;
const NVFP4_BLOCK: usize = Nvfp4::ELEMS;
/// Values that share a scale in MXFP4.
const MXFP4_GROUP: usize = Mxfp4::ELEMS;

/// `weight` u8, `weight_scale` for 16 values, `weight_scale_2` for all.
pub(super) fn nvfp4<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let scales = files.want_beside(module, "weight_scale", codes)?;
    let global = files.want_beside(module, "weight_scale_2", codes)?;
    nvfp4_blocks(files, codes, scales, Some(global), dims)
}

/// `weight_packed` u8 with the scales of NVFP4 or MXFP4.
pub(super) fn packed<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    if codes.dtype != DType::U8 {
        let problem = format!("packs integers into {}, which is not supported", codes.dtype);
        return Err(files.unsupported(codes, problem));
    }
    let scales = files.want_beside(module, "weight_scale", codes)?;
    if scales.dtype == DType::U8 {
        return mxfp4_blocks(files, codes, scales, dims);
    }
    let global = files.want_beside(module, "weight_global_scale", codes)?;
    let mut found = nvfp4_blocks(files, codes, scales, Some(global), dims)?;
    for (factor, stored) in found.factors.iter_mut().zip(files.positive(global)?) {
        *factor = 1.0 / stored;
        if !factor.is_normal() {
            return Err(files.bad_scale(global, format!("holds the reciprocal {stored:e} of a scale")));
        }
    }
    Ok(found)
}

/// `weight` f8_e4m3 and `weight_scale` for all values or for each row.
pub(super) fn fp8<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    files.check(codes, dims, dims.want, &[DType::F8E4M3])?;
    let scale = files.want_beside(module, "weight_scale", codes)?;
    let rows = &dims.want[..dims.want.len() - 1];
    let got = scale.shape.dims();
    let is_per_row = (got == rows || got.split_last() == Some((&1, rows))) && dims.rows() > dims.experts();
    let module = super::as_stored(codes);
    if is_per_row {
        files.positive(scale)?;
        return Ok(Module { row_scales: Some(scale), ..module });
    }
    if ![1, dims.experts()].contains(&scale.shape.elems()) {
        return Err(files.wrong_shape(scale, dims, format!("[], [1] or {:?}", dims.with_cols(1))));
    }
    Ok(Module { factors: files.factors(scale, dims)?, factor_tensors: vec![scale], ..module })
}

/// Codes of four bits, a scale for 16 of them and perhaps one for all.
pub(super) fn nvfp4_blocks<'c>(
    files: &Files<'c>,
    codes: &'c TensorInfo,
    scales: &'c TensorInfo,
    global: Option<&'c TensorInfo>,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    divides(files, codes, dims, NVFP4_GROUP)?;
    check_codes(files, codes, dims)?;
    let shape = dims.with_cols(dims.cols() / NVFP4_GROUP);
    files.check(scales, dims, &shape, &[DType::F8E4M3, DType::U8])?;
    let whole_blocks = dims.cols().is_multiple_of(NVFP4_BLOCK);
    let (dtype, form) =
        if whole_blocks { (DType::NVFP4, Form::Nvfp4) } else { (DType::BF16, Form::Nvfp4Wide) };
    let factors = match global {
        Some(global) => files.factors(global, dims)?,
        None => vec![1.0],
    };
    Ok(Module {
        dtype,
        form,
        codes,
        beside: vec![scales],
        row_scales: None,
        factors,
        factor_tensors: global.into_iter().collect(),
    })
}

/// Codes of four bits and an exponent for 32 of them.
pub(super) fn mxfp4_blocks<'c>(
    files: &Files<'c>,
    codes: &'c TensorInfo,
    scales: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    divides(files, codes, dims, MXFP4_GROUP)?;
    check_codes(files, codes, dims)?;
    files.check(scales, dims, &dims.with_cols(dims.cols() / MXFP4_GROUP), &[DType::U8])?;
    Ok(Module {
        dtype: DType::MXFP4,
        form: Form::Mxfp4,
        codes,
        beside: vec![scales],
        row_scales: None,
        factors: vec![1.0],
        factor_tensors: Vec::new(),
    })
}

/// Stacked experts as gpt-oss has them: `X_blocks` with the groups of a row apart, and `X_scales`.
pub(super) fn mxfp4_experts<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let name = format!("{module}_scales");
    let scales = files.checkpoint.tensor(&name).ok_or_else(|| ModelError::MissingScale {
        file: files.checkpoint.source().to_owned(),
        tensor: name,
        codes: codes.name.clone(),
    })?;
    divides(files, codes, dims, MXFP4_GROUP)?;
    let groups = dims.with_cols(dims.cols() / MXFP4_GROUP);
    let bytes = MXFP4_GROUP / pairs::CODES_PER_BYTE;
    files.check(codes, dims, &[&groups[..], &[bytes]].concat(), &[DType::U8])?;
    files.check(scales, dims, &groups, &[DType::U8])?;
    Ok(Module { dtype: DType::MXFP4, form: Form::Mxfp4, beside: vec![scales], ..super::as_stored(codes) })
}

/// Two codes of four bits in a byte, eight in a word.
fn check_codes(files: &Files, codes: &TensorInfo, dims: Dims) -> Result<(), ModelError> {
    let per_elem = if codes.dtype == DType::U32 { 4 * pairs::CODES_PER_BYTE } else { pairs::CODES_PER_BYTE };
    files.check(codes, dims, &dims.with_cols(dims.cols() / per_elem), &[DType::U8, DType::U32])
}

/// Refuses rows that are not whole groups.
pub(super) fn divides(files: &Files, codes: &TensorInfo, dims: Dims, group: usize) -> Result<(), ModelError> {
    match dims.cols().is_multiple_of(group) {
        true => Ok(()),
        false => {
            let problem =
                format!("has rows of {} values, which groups of {group} do not divide", dims.cols());
            Err(files.unsupported(codes, problem))
        }
    }
}
