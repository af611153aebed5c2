//! The rules every tensor list obeys: names are unique, data lies inside the file, nothing overlaps.
//!
//! Shared by the formats; knows neither headers nor types.

use std::ops::Range;

use mambo_tensor::{DType, Shape};

use crate::error::one_line;
use crate::{CheckpointError, TensorInfo};

/// Bytes of a tensor, or why its shape and type do not go together.
pub(crate) fn tensor_bytes(
    file: &str,
    name: &str,
    dtype: DType,
    shape: &Shape,
) -> Result<u64, CheckpointError> {
    let row = shape.row_elems();
    let row_bytes = dtype.row_bytes(row).ok_or_else(|| {
        let block = dtype.block_elems();
        let problem =
            format!("tensor `{name}` of type {dtype} has rows of {row} values, not a multiple of {block}");
        CheckpointError::malformed(file, problem)
    })?;
    (row_bytes as u64).checked_mul(shape.rows() as u64).ok_or_else(|| {
        CheckpointError::malformed(file, format!("tensor `{name}` with shape {shape} is too large"))
    })
}

/// The bytes of a tensor's data inside a file of `file_bytes`; `offset` counts from `data_start`.
pub(crate) fn data_range(
    file: &str,
    name: &str,
    (data_start, file_bytes): (u64, u64),
    offset: u64,
    length: u64,
) -> Result<Range<u64>, CheckpointError> {
    let truncated = |start: u64| CheckpointError::Truncated {
        file: file.to_string(),
        what: one_line(&format!("tensor `{name}`")),
        offset: start,
        needed: length,
        left: file_bytes.saturating_sub(start),
    };
    let start = data_start.checked_add(offset).ok_or_else(|| truncated(u64::MAX))?;
    let end = start.checked_add(length).ok_or_else(|| truncated(start))?;
    if end > file_bytes {
        return Err(truncated(start));
    }
    Ok(start..end)
}

/// No two tensors of one file share a byte.
pub(crate) fn check_overlap(file: &str, tensors: &[TensorInfo]) -> Result<(), CheckpointError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    order.sort_by_key(|t| t.range.start);
    for pair in order.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            let problem = format!("tensors `{}` and `{}` overlap", pair[0].name, pair[1].name);
            return Err(CheckpointError::malformed(file, problem));
        }
    }
    Ok(())
}

/// Positions of the tensors in the order of their names, or the name that occurs twice.
pub(crate) fn index_names(tensors: &[TensorInfo]) -> Result<Vec<usize>, String> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
    match order.windows(2).find(|w| tensors[w[0]].name == tensors[w[1]].name) {
        Some(pair) => Err(tensors[pair[0]].name.clone()),
        None => Ok(order),
    }
}
