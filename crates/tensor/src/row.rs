//! Decode and encode one row of any type: checks the lengths, then hands over to the type's own function.

use crate::{DType, TensorError};

fn check(dtype: DType, elems: usize, bytes: usize) -> Result<(), TensorError> {
    let block = dtype.block_elems();
    let expected = dtype.row_bytes(elems).ok_or(TensorError::NotWholeBlocks { dtype, elems, block })?;
    if expected != bytes {
        return Err(TensorError::RowBytes { dtype, elems, expected, bytes });
    }
    Ok(())
}

/// Widens or dequantises a row to f32.
///
/// The result is exact for every type that f32 can hold; f64 and integers beyond 24 bits are rounded to the
/// nearest f32. Quantised values are computed in f32 in the order the format's layout defines.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), TensorError> {
    check(dtype, out.len(), bytes.len())?;
    (dtype.row().decode)(bytes, out);
    Ok(())
}

/// Narrows or quantises a row of f32, with equal weight for all values.
///
/// Float types round to nearest even and keep NaN and infinities; a finite value that would become infinite
/// is an error. Block formats refuse values that are not finite, and search scales for the least squared
/// error, so they never do worse than plain rounding. The same values always give the same bytes.
pub fn encode_row(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), TensorError> {
    encode_row_weighted(dtype, values, None, out)
}

/// Like [`encode_row`], but block formats search for the least *weighted* squared error: `importance` holds
/// a weight of at least zero per value. Only the weights' ratios inside a block matter, and in a block
/// whose weights are all zero, all values count equally. Other types ignore the weights.
pub fn encode_row_weighted(
    dtype: DType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), TensorError> {
    let encode = dtype.row().encode.ok_or(TensorError::NoEncoder(dtype))?;
    check(dtype, values.len(), out.len())?;
    if dtype.is_quantized()
        && let Some(index) = values.iter().position(|v| !v.is_finite())
    {
        return Err(TensorError::NotFinite { dtype, index, value: values[index] });
    }
    if let Some(weights) = importance {
        check_importance(values.len(), weights)?;
    }
    encode(values, importance, out)
}

fn check_importance(elems: usize, weights: &[f32]) -> Result<(), TensorError> {
    if weights.len() != elems {
        return Err(TensorError::ImportanceLength { elems, weights: weights.len() });
    }
    match weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
        Some(index) => Err(TensorError::BadImportance { index, value: weights[index] }),
        None => Ok(()),
    }
}
