//! Writes GGUF version 3 as a stream: metadata and the tensor list first, then the data piece by piece.

use std::path::Path;

use mambo_tensor::{DType, Shape};

use super::reader::MAGIC;
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufArray, GgufMetadata, GgufValue};
use crate::atomic_file::AtomicFile;
use crate::{CheckpointError, layout};

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub dtype: DType,
    /// Row-major, outermost dimension first.
    pub shape: Shape,
}

/// A GGUF file being written. Until [`GgufWriter::finish`] only a `.partial` file beside it exists; dropping the writer
/// earlier, after an error for instance, removes it.
pub struct GgufWriter {
    file: AtomicFile,
    tensors: Vec<(String, u64)>,
    current: usize,
    written: u64,
}

impl GgufWriter {
    /// Starts the file: writes the metadata (except `general.alignment`, which is the default 32) and the list
    /// of all tensors. Their data follows in the same order through [`GgufWriter::write`].
    pub fn create(
        path: &Path,
        metadata: &GgufMetadata,
        tensors: &[GgufTensor],
    ) -> Result<GgufWriter, CheckpointError> {
        let wrong = |problem| CheckpointError::Write { path: path.to_path_buf(), problem };
        let file_name = path.display().to_string();
        let mut sizes = Vec::with_capacity(tensors.len());
        for t in tensors {
            sizes.push((t.name.clone(), layout::tensor_bytes(&file_name, &t.name, t.dtype, &t.shape)?));
        }
        let header = header(metadata, tensors, &sizes).map_err(wrong)?;
        let mut file = AtomicFile::create(path)?;
        file.write(&header)?;
        Ok(GgufWriter { file, tensors: sizes, current: 0, written: 0 })
    }

    /// Appends a piece of a tensor's data. Tensors come in the order they were declared, each in full.
    pub fn write(&mut self, tensor: &str, piece: &[u8]) -> Result<(), CheckpointError> {
        if self.tensors.get(self.current).is_none_or(|(name, _)| name != tensor) {
            return Err(self.misuse(format!("the data of tensor `{tensor}` came out of order")));
        }
        let length = self.tensors[self.current].1;
        if piece.len() as u64 > length - self.written {
            return Err(self.misuse(format!("tensor `{tensor}` got more than its {length} bytes")));
        }
        self.file.write(piece)?;
        self.written += piece.len() as u64;
        if self.written == length {
            let padding = length.next_multiple_of(DEFAULT_ALIGNMENT) - length;
            self.file.write(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Completes the file and gives it its name. Fails when data is missing.
    pub fn finish(self) -> Result<(), CheckpointError> {
        if let Some((name, length)) = self.tensors.get(self.current) {
            let written = self.written;
            return Err(self.misuse(format!("tensor `{name}` got {written} of its {length} bytes")));
        }
        self.file.finish()
    }

    fn misuse(&self, problem: String) -> CheckpointError {
        CheckpointError::Write { path: self.file.path().to_path_buf(), problem }
    }
}

fn header(
    metadata: &GgufMetadata,
    tensors: &[GgufTensor],
    sizes: &[(String, u64)],
) -> Result<Vec<u8>, String> {
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    let entries: Vec<_> = metadata.iter().filter(|(key, _)| *key != ALIGNMENT_KEY).collect();
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        put_string(&mut out, key);
        out.extend(value.type_id().to_le_bytes());
        put_value(&mut out, value);
    }
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("there are two tensors named `{}`", pair[0]));
    }
    let mut offset = 0u64;
    for (t, (name, bytes)) in tensors.iter().zip(sizes) {
        put_tensor(&mut out, t, offset)?;
        offset = bytes
            .checked_next_multiple_of(DEFAULT_ALIGNMENT)
            .and_then(|padded| offset.checked_add(padded))
            .ok_or_else(|| format!("with tensor `{name}` the file would be too large"))?;
    }
    out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
    Ok(out)
}

fn put_tensor(out: &mut Vec<u8>, tensor: &GgufTensor, offset: u64) -> Result<(), String> {
    let GgufTensor { name, dtype, shape } = tensor;
    let id =
        dtype.ggml_id().ok_or_else(|| format!("GGUF has no type for tensor `{name}` of type {dtype}"))?;
    if shape.rank() > 4 || shape.elems() == 0 {
        return Err(format!("GGUF cannot hold tensor `{name}` with shape {shape}"));
    }
    put_string(out, name);
    let dims = if shape.rank() == 0 { &[1] } else { shape.dims() };
    out.extend((dims.len() as u32).to_le_bytes());
    for &dim in dims.iter().rev() {
        out.extend((dim as u64).to_le_bytes());
    }
    out.extend(id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    Ok(())
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    match value {
        GgufValue::U8(v) => out.extend(v.to_le_bytes()),
        GgufValue::I8(v) => out.extend(v.to_le_bytes()),
        GgufValue::U16(v) => out.extend(v.to_le_bytes()),
        GgufValue::I16(v) => out.extend(v.to_le_bytes()),
        GgufValue::U32(v) => out.extend(v.to_le_bytes()),
        GgufValue::I32(v) => out.extend(v.to_le_bytes()),
        GgufValue::U64(v) => out.extend(v.to_le_bytes()),
        GgufValue::I64(v) => out.extend(v.to_le_bytes()),
        GgufValue::F32(v) => out.extend(v.to_le_bytes()),
        GgufValue::F64(v) => out.extend(v.to_le_bytes()),
        GgufValue::Bool(v) => out.push(u8::from(*v)),
        GgufValue::String(v) => put_string(out, v),
        GgufValue::Array(v) => put_array(out, v),
    }
}

fn put_array(out: &mut Vec<u8>, array: &GgufArray) {
    fn put_all<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], bytes: fn(T) -> [u8; N]) {
        values.iter().for_each(|&v| out.extend(bytes(v)));
    }
    out.extend(array.element_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        GgufArray::U8(v) => put_all(out, v, u8::to_le_bytes),
        GgufArray::I8(v) => put_all(out, v, i8::to_le_bytes),
        GgufArray::U16(v) => put_all(out, v, u16::to_le_bytes),
        GgufArray::I16(v) => put_all(out, v, i16::to_le_bytes),
        GgufArray::U32(v) => put_all(out, v, u32::to_le_bytes),
        GgufArray::I32(v) => put_all(out, v, i32::to_le_bytes),
        GgufArray::U64(v) => put_all(out, v, u64::to_le_bytes),
        GgufArray::I64(v) => put_all(out, v, i64::to_le_bytes),
        GgufArray::F32(v) => put_all(out, v, f32::to_le_bytes),
        GgufArray::F64(v) => put_all(out, v, f64::to_le_bytes),
        GgufArray::Bool(v) => put_all(out, v, |b| [u8::from(b)]),
        GgufArray::String(v) => v.iter().for_each(|s| put_string(out, s)),
        GgufArray::Array(v) => v.iter().for_each(|a| put_array(out, a)),
    }
}
