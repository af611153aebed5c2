//! Writes named f32 tensors as one safetensors file, whole or as their values come.

use std::path::Path;

use mambo_tensor::Shape;
use serde_json::{Map, Value, json};

use crate::CheckpointError;
use crate::atomic_file::AtomicFile;

/// Values converted at a time.
const PIECE_ELEMS: usize = 1 << 16;

/// A file of f32 tensors that are filled in turns: all of them together may be larger than memory. It
/// appears complete or not at all.
pub struct SafetensorsWriter {
    file: AtomicFile,
    tensors: Vec<Place>,
    piece: Vec<u8>,
}

/// One tensor's place in the file.
struct Place {
    name: String,
    /// Byte of the next value.
    next: u64,
    /// Byte after the last value.
    end: u64,
}

impl SafetensorsWriter {
    /// Starts a file of tensors with these names and shapes.
    pub fn create(path: &Path, tensors: &[(&str, Shape)]) -> Result<SafetensorsWriter, CheckpointError> {
        let (mut header, mut places, mut offset) = (Map::new(), Vec::new(), 0u64);
        for (name, shape) in tensors {
            let end = offset + shape.elems() as u64 * 4;
            let entry = json!({"dtype": "F32", "shape": shape.dims(), "data_offsets": [offset, end]});
            if header.insert(name.to_string(), entry).is_some() {
                let problem = format!("there are two tensors named `{name}`");
                return Err(CheckpointError::Write { path: path.to_path_buf(), problem });
            }
            places.push(Place { name: name.to_string(), next: offset, end });
            offset = end;
        }
        let mut text = Value::Object(header).to_string();
        // Readers that cast in place want the data on a multiple of eight.
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let start = 8 + text.len() as u64;
        places.iter_mut().for_each(|place| (place.next, place.end) = (place.next + start, place.end + start));
        let mut file = AtomicFile::create(path)?;
        file.write(&(text.len() as u64).to_le_bytes())?;
        file.write(text.as_bytes())?;
        Ok(SafetensorsWriter { file, tensors: places, piece: Vec::with_capacity(PIECE_ELEMS * 4) })
    }

    /// Where the unfinished file is.
    pub fn partial(&self) -> &Path {
        self.file.partial()
    }

    /// Adds values to a tensor, by its place in the list the file was made from.
    pub fn add(&mut self, tensor: usize, values: &[f32]) -> Result<(), CheckpointError> {
        for values in values.chunks(PIECE_ELEMS) {
            let place = &mut self.tensors[tensor];
            let first = place.next;
            place.next += values.len() as u64 * 4;
            if place.next > place.end {
                let problem = format!("tensor `{}` gets more values than its shape holds", place.name);
                return Err(self.wrong(problem));
            }
            self.piece.clear();
            values.iter().for_each(|v| self.piece.extend(v.to_le_bytes()));
            self.file.write_at(first, &self.piece)?;
        }
        Ok(())
    }

    /// Puts the file into its place; every tensor must be full.
    pub fn finish(self) -> Result<(), CheckpointError> {
        if let Some(place) = self.tensors.iter().find(|place| place.next < place.end) {
            let problem = format!("tensor `{}` has fewer values than its shape holds", place.name);
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
    let shapes: Vec<_> = tensors.iter().map(|(name, shape, _)| (*name, *shape)).collect();
    let mut file = SafetensorsWriter::create(path, &shapes)?;
    for (index, (_, _, values)) in tensors.iter().enumerate() {
        file.add(index, values)?;
    }
    file.finish()
}
