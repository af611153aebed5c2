//! Writes named tensors as one safetensors file, whole or as their values come.

use std::path::Path;

use mambo_tensor::{DType, Shape};
use serde_json::{Map, Value, json};

use super::header;
use crate::atomic_file::AtomicFile;
use crate::{CheckpointError, layout};

/// Values converted at a time.
const PIECE_ELEMS: usize = 1 << 16;

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq)]
pub struct SafetensorsTensor {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub dtype: DType,
    /// Row-major, outermost dimension first.
    pub shape: Shape,
}

impl SafetensorsTensor {
    /// A tensor of f32.
    pub fn f32(name: &str, shape: Shape) -> SafetensorsTensor {
        SafetensorsTensor { name: name.to_owned(), dtype: DType::F32, shape }
    }
}

/// A file of tensors that are filled piece by piece, in any order: all of them together may be larger than memory. It appears
/// complete or not at all.
pub struct SafetensorsWriter {
    file: AtomicFile,
    tensors: Vec<Extent>,
    piece: Vec<u8>,
}

/// The bytes of one tensor in the file.
struct Extent {
    name: String,
    /// Byte of the next value.
    next: u64,
    /// Byte after the last value.
    end: u64,
}

impl SafetensorsWriter {
    /// Starts a file of these tensors.
    pub fn create(path: &Path, tensors: &[SafetensorsTensor]) -> Result<SafetensorsWriter, CheckpointError> {
        let wrong = |problem| CheckpointError::Write { path: path.to_path_buf(), problem };
        let file_name = path.display().to_string();
        let (mut header, mut extents, mut offset) = (Map::new(), Vec::new(), 0u64);
        for SafetensorsTensor { name, dtype, shape } in tensors {
            let bytes = layout::tensor_bytes(&file_name, name, *dtype, shape)?;
            let end = offset
                .checked_add(bytes)
                .ok_or_else(|| wrong(format!("with tensor `{name}` the file would be too large")))?;
            let kind = header::type_name(*dtype).ok_or_else(|| {
                wrong(format!("safetensors has no type for tensor `{name}` of type {dtype}"))
            })?;
            let entry = json!({"dtype": kind, "shape": shape.dims(), "data_offsets": [offset, end]});
            if header.insert(name.clone(), entry).is_some() {
                return Err(wrong(format!("there are two tensors named `{name}`")));
            }
            extents.push(Extent { name: name.clone(), next: offset, end });
            offset = end;
        }
        let mut text = Value::Object(header).to_string();
        // Readers that cast in place want the data on a multiple of eight.
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let start = 8 + text.len() as u64;
        extents
            .iter_mut()
            .for_each(|extent| (extent.next, extent.end) = (extent.next + start, extent.end + start));
        let mut file = AtomicFile::create(path)?;
        file.write(&(text.len() as u64).to_le_bytes())?;
        file.write(text.as_bytes())?;
        Ok(SafetensorsWriter { file, tensors: extents, piece: Vec::with_capacity(PIECE_ELEMS * 4) })
    }

    /// Where the unfinished file is.
    pub fn partial(&self) -> &Path {
        self.file.partial()
    }

    /// Adds f32 values to a tensor, by its index in the list the file was made from.
    pub fn add(&mut self, tensor: usize, values: &[f32]) -> Result<(), CheckpointError> {
        let mut piece = std::mem::take(&mut self.piece);
        for values in values.chunks(PIECE_ELEMS) {
            piece.clear();
            values.iter().for_each(|v| piece.extend(v.to_le_bytes()));
            self.add_bytes(tensor, &piece)?;
        }
        self.piece = piece;
        Ok(())
    }

    /// Adds stored values to a tensor, by its index in the list the file was made from.
    pub fn add_bytes(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), CheckpointError> {
        let extent = &mut self.tensors[tensor];
        let first = extent.next;
        extent.next += bytes.len() as u64;
        if extent.next > extent.end {
            let problem = format!("tensor `{}` gets more values than its shape holds", extent.name);
            return Err(self.wrong(problem));
        }
        self.file.write_at(first, bytes)
    }

    /// Renames the file into place; every tensor must be full.
    pub fn finish(self) -> Result<(), CheckpointError> {
        if let Some(extent) = self.tensors.iter().find(|extent| extent.next < extent.end) {
            let problem = format!("tensor `{}` has fewer values than its shape holds", extent.name);
            return Err(self.wrong(problem));
        }
        self.file.finish()
    }

    fn wrong(&self, problem: String) -> CheckpointError {
        CheckpointError::Write { path: self.file.path().to_path_buf(), problem }
    }
}

/// Writes f32 tensors that are all there.
pub fn write_safetensors(path: &Path, tensors: &[(&str, Shape, &[f32])]) -> Result<(), CheckpointError> {
    let shapes: Vec<_> =
        tensors.iter().map(|(name, shape, _)| SafetensorsTensor::f32(name, *shape)).collect();
    let mut file = SafetensorsWriter::create(path, &shapes)?;
    for (index, (_, _, values)) in tensors.iter().enumerate() {
        file.add(index, values)?;
    }
    file.finish()
}
