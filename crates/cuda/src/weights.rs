//! Taking weights in: packed for products, as stored or as f32 for look-ups, as f32 for vectors.

use std::sync::Arc;

use mambo_kernel::{BackendError, WeightKey, WeightPart, WeightSource, WeightUse};
use mambo_tensor::{DType, decode_row};

use crate::driver::BACKEND;
use crate::kernels::binding::Weight;
use crate::kernels::declaration::{TABLE, VECTOR};
use crate::kernels::embed::{self, Table};
use crate::kernels::matmul::{self, Packed};
use crate::loader::Loader;
use crate::memory::DeviceBuffer;

/// Values that are decoded before they are copied.
const DECODED_AT_ONCE: usize = 4 << 20;

/// Loads a weight in the form its key names and says how many bytes it takes.
pub(crate) fn load(
    loader: &mut Loader,
    key: &WeightKey,
    source: &dyn WeightSource,
) -> Result<(Weight, usize), BackendError> {
    let shape = source.shape();
    let dims = match (key.usage, shape) {
        (WeightUse::Matrix, &[out, cols]) => [1, out, cols],
        (WeightUse::Experts, &[experts, out, cols]) => [experts, out, cols],
        (WeightUse::Table, &[rows, cols]) => [1, rows, cols],
        (WeightUse::Vector, &[.., cols]) => [1, shape[..shape.len() - 1].iter().product(), cols],
        (WeightUse::Matrix | WeightUse::Table, _) => {
            return Err(wrong(key, source, "expected two dimensions"));
        }
        (WeightUse::Experts, _) => return Err(wrong(key, source, "expected three dimensions")),
        (WeightUse::Vector, _) => return Err(wrong(key, source, "expected at least one dimension")),
    };
    if dims.contains(&0) {
        return Err(wrong(key, source, "which is empty"));
    }
    match key.form {
        VECTOR => {
            let len = dims[1] * dims[2];
            let values = load_decoded(loader, key, source, dims)?;
            Ok((Weight::Vector { values: Arc::new(values), len }, len * 4))
        }
        TABLE => {
            let table = load_table(loader, key, source, dims)?;
            let bytes = table.bytes();
            Ok((Weight::Table(Arc::new(table)), bytes))
        }
        _ => {
            if !matmul::is_supported(source.dtype()) {
                return Err(BackendError::UnsupportedWeight {
                    name: key.name.clone(),
                    dtype: source.dtype(),
                    backend: BACKEND.to_owned(),
                    supported: matmul::supported(),
                });
            }
            let packed = Packed::load(loader, key, source, dims)?;
            let bytes = packed.bytes();
            Ok((Weight::Packed(Arc::new(packed)), bytes))
        }
    }
}

/// The error of a weight whose shape or bytes do not fit.
pub(crate) fn wrong(key: &WeightKey, source: &dyn WeightSource, problem: &str) -> BackendError {
    BackendError::WeightShape {
        name: key.name.clone(),
        shape: format!("{:?}", source.shape()),
        problem: problem.to_owned(),
    }
}

/// Reads a part of a weight.
pub(crate) fn read_part<'s>(
    key: &WeightKey,
    source: &'s dyn WeightSource,
    part: usize,
) -> Result<WeightPart<'s>, BackendError> {
    source.part(part).map_err(|source| BackendError::ReadWeight { name: key.name.clone(), source })
}

/// Calls `take` with every part's rows and the number of rows before it; all parts together have `rows` rows.
pub(crate) fn each_part(
    key: &WeightKey,
    source: &dyn WeightSource,
    [rows, cols]: [usize; 2],
    mut take: impl FnMut(&WeightPart, usize, usize) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let row_bytes = source.dtype().row_bytes(cols).filter(|bytes| *bytes > 0);
    let row_bytes = row_bytes.ok_or_else(|| wrong(key, source, "whose rows are not whole blocks"))?;
    let mut before = 0;
    for index in 0..source.part_count() {
        let part = read_part(key, source, index)?;
        let count = part.bytes.len() / row_bytes;
        if !part.bytes.len().is_multiple_of(row_bytes) || before + count > rows {
            return Err(wrong(key, source, "whose stored bytes are of another size"));
        }
        take(&part, before, count)?;
        before += count;
        drop(part);
        source.release(index);
    }
    if before != rows {
        return Err(wrong(key, source, "of which rows are missing"));
    }
    Ok(())
}

/// A weight as f32 values with their factors.
fn load_decoded(
    loader: &mut Loader,
    key: &WeightKey,
    source: &dyn WeightSource,
    [_, rows, cols]: [usize; 3],
) -> Result<DeviceBuffer, BackendError> {
    let bytes = rows.checked_mul(cols).and_then(|values| values.checked_mul(4));
    let bytes = bytes.ok_or_else(|| wrong(key, source, "which is too large"))?;
    let buffer = loader.allocate(bytes, &format!("weight `{}`", key.name))?;
    let dtype = source.dtype();
    let at_once = (DECODED_AT_ONCE / cols).max(1);
    each_part(key, source, [rows, cols], |part, before, count| {
        let row_bytes = part.bytes.len() / count.max(1);
        for first in (0..count).step_by(at_once) {
            let taken = at_once.min(count - first);
            let stored = &part.bytes[first * row_bytes..][..taken * row_bytes];
            let values = decode(dtype, stored, [taken, cols], |row| part.row_scale(first + row))
                .map_err(|problem| wrong(key, source, &problem))?;
            let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            loader.upload(&values, &buffer, (before + first) * cols * 4)?;
        }
        Ok(())
    })?;
    Ok(buffer)
}

/// Rows as f32, by as many threads as there are cores.
fn decode(
    dtype: DType,
    stored: &[u8],
    [rows, cols]: [usize; 2],
    scale: impl Fn(usize) -> f32 + Sync,
) -> Result<Vec<f32>, String> {
    let mut values = vec![0f32; rows * cols];
    let row_bytes = stored.len() / rows.max(1);
    let decode_rows = |first: usize, values: &mut [f32]| {
        for (index, values) in values.chunks_exact_mut(cols).enumerate() {
            let (row, scale) = (first + index, scale(first + index));
            decode_row(dtype, &stored[row * row_bytes..][..row_bytes], values).map_err(|e| e.to_string())?;
            values.iter_mut().for_each(|value| *value *= scale);
        }
        Ok::<(), String>(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // A thread takes longer to start than a small weight to decode.
    if rows * cols < 1 << 16 {
        decode_rows(0, &mut values)?;
        return Ok(values);
    }
    let share = rows.div_ceil(threads);
    let decode_rows = &decode_rows;
    std::thread::scope(|scope| {
        let parts = values.chunks_mut(share * cols).enumerate();
        let workers: Vec<_> =
            parts.map(|(index, values)| scope.spawn(move || decode_rows(index * share, values))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("decoding does not panic"))
    })?;
    Ok(values)
}

fn load_table(
    loader: &mut Loader,
    key: &WeightKey,
    source: &dyn WeightSource,
    dims: [usize; 3],
) -> Result<Table, BackendError> {
    let ([_, rows, cols], dtype) = (dims, source.dtype());
    if !embed::is_read_as_stored(dtype) {
        let data = load_decoded(loader, key, source, dims)?;
        return Ok(Table { data, scales: None, dtype: DType::F32, rows, cols });
    }
    let row_bytes =
        dtype.row_bytes(cols).ok_or_else(|| wrong(key, source, "whose rows are not whole blocks"))?;
    let bytes = rows.checked_mul(row_bytes).ok_or_else(|| wrong(key, source, "which is too large"))?;
    let data = loader.allocate(bytes, &format!("weight `{}`", key.name))?;
    let mut scales = vec![1f32; rows];
    each_part(key, source, [rows, cols], |part, before, count| {
        loader.upload(&part.bytes, &data, before * row_bytes)?;
        (0..count).for_each(|row| scales[before + row] = part.row_scale(row));
        Ok(())
    })?;
    let scales = match scales.iter().all(|scale| *scale == 1.0) {
        true => None,
        false => {
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            let buffer = loader.allocate(bytes.len(), &format!("factors of weight `{}`", key.name))?;
            loader.upload(&bytes, &buffer, 0)?;
            Some(buffer)
        }
    };
    Ok(Table { data, scales, dtype, rows, cols })
}
