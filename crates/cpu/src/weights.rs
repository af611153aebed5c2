//! Taking weights in: packed for products, as stored for look-ups, as f32 for vectors.

use std::sync::Arc;

use mambo_kernel::{BackendError, WeightKey, WeightPart, WeightSource, WeightUse};
use mambo_tensor::decode_row;

use crate::kernels::declaration::{Weight, WeightForm};
use crate::kernels::embed::Table;
use crate::kernels::matmul::{self, Packed};
use crate::memory::Buffer;
use crate::team::Team;

/// Loads a weight in the form its key names and says how many bytes it takes.
pub(crate) fn load(
    team: &mut Team,
    backend: &str,
    key: &WeightKey,
    source: &dyn WeightSource,
) -> Result<(Weight, usize), BackendError> {
    let shape = source.shape();
    let wrong = |problem: &str| BackendError::WeightShape {
        name: key.name.clone(),
        shape: format!("{shape:?}"),
        problem: problem.to_string(),
    };
    let dims = match (key.usage, shape) {
        (WeightUse::Matrix, &[out, cols]) => [1, out, cols],
        (WeightUse::Experts, &[experts, out, cols]) => [experts, out, cols],
        (WeightUse::Table, &[rows, cols]) => [1, rows, cols],
        (WeightUse::Vector, &[.., cols]) => [1, shape[..shape.len() - 1].iter().product(), cols],
        (WeightUse::Matrix | WeightUse::Table, _) => return Err(wrong("expected two dimensions")),
        (WeightUse::Experts, _) => return Err(wrong("expected three dimensions")),
        (WeightUse::Vector, _) => return Err(wrong("expected at least one dimension")),
    };
    if dims.contains(&0) {
        return Err(wrong("which is empty"));
    }
    match WeightForm::of(key) {
        WeightForm::Packed => {
            if !matmul::is_supported(source.dtype()) {
                return Err(BackendError::UnsupportedWeight {
                    name: key.name.clone(),
                    dtype: source.dtype(),
                    backend: backend.to_string(),
                    supported: matmul::supported(),
                });
            }
            let packed = Packed::load(team, &key.name, source, dims)?;
            let bytes = packed.bytes();
            Ok((Weight::Packed(Arc::new(packed)), bytes))
        }
        WeightForm::Table => load_table(key, source, [dims[1], dims[2]], &wrong),
        WeightForm::Vector => load_vector(key, source, [dims[1], dims[2]], &wrong),
    }
}

/// Reads a part of the weight `name`.
pub(crate) fn read_part<'s>(
    name: &str,
    source: &'s dyn WeightSource,
    part: usize,
) -> Result<WeightPart<'s>, BackendError> {
    source.part(part).map_err(|source| BackendError::ReadWeight { name: name.to_string(), source })
}

fn load_table(
    key: &WeightKey,
    source: &dyn WeightSource,
    [rows, cols]: [usize; 2],
    wrong: &dyn Fn(&str) -> BackendError,
) -> Result<(Weight, usize), BackendError> {
    let dtype = source.dtype();
    let row_bytes = dtype.row_bytes(cols).ok_or_else(|| wrong("whose rows are not whole blocks"))?;
    let bytes = rows.checked_mul(row_bytes).ok_or_else(|| wrong("which is too large"))?;
    let mut data = Buffer::zeroed(bytes, &format!("weight `{}`", key.name))?;
    let mut at = 0;
    let mut scales: Vec<(usize, f32)> = Vec::new();
    for part in 0..source.part_count() {
        let stored = read_part(&key.name, source, part)?;
        let stored_bytes = stored.bytes.len();
        let room = data.get_mut(at..at + stored_bytes).ok_or_else(|| wrong("but more bytes are stored"))?;
        room.copy_from_slice(&stored.bytes);
        at += stored_bytes;
        if !stored_bytes.is_multiple_of(row_bytes.max(1)) {
            return Err(wrong("whose stored bytes are of another size"));
        }
        for row in 0..stored_bytes / row_bytes.max(1) {
            let scale = stored.row_scale(row);
            match scales.last_mut() {
                Some((end, last)) if *last == scale => *end += 1,
                last => {
                    let start = last.map_or(0, |(end, _)| *end);
                    scales.push((start + 1, scale));
                }
            }
        }
        drop(stored);
        source.release(part);
    }
    if at != bytes {
        return Err(wrong("of which rows are missing"));
    }
    Ok((Weight::Table(Arc::new(Table { dtype, rows, cols, row_bytes, scales, data })), bytes))
}

fn load_vector(
    key: &WeightKey,
    source: &dyn WeightSource,
    [rows, cols]: [usize; 2],
    wrong: &dyn Fn(&str) -> BackendError,
) -> Result<(Weight, usize), BackendError> {
    let dtype = source.dtype();
    let row_bytes = dtype.row_bytes(cols).ok_or_else(|| wrong("whose rows are not whole blocks"))?;
    let mut values = Vec::with_capacity(rows * cols);
    for part in 0..source.part_count() {
        let stored = read_part(&key.name, source, part)?;
        if !stored.bytes.len().is_multiple_of(row_bytes.max(1)) {
            return Err(wrong("whose stored bytes are of another size"));
        }
        for (row, bytes) in stored.bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            let scale = stored.row_scale(row);
            let start = values.len();
            values.resize(start + cols, 0.0);
            decode_row(dtype, bytes, &mut values[start..]).map_err(|e| wrong(&e.to_string()))?;
            values[start..].iter_mut().for_each(|v| *v *= scale);
        }
        drop(stored);
        source.release(part);
    }
    if values.len() != rows * cols {
        return Err(wrong("whose stored bytes are of another size"));
    }
    let bytes = values.len() * 4;
    Ok((Weight::Vector(Arc::new(values)), bytes))
}
