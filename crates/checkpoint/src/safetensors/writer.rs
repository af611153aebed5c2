//! Writes named f32 tensors as one safetensors file.

use std::path::Path;

use mambo_tensor::Shape;
use serde_json::{Map, Value, json};

use crate::CheckpointError;
use crate::atomic_file::AtomicFile;

/// Values converted at a time.
const PIECE_ELEMS: usize = 1 << 16;

/// Writes f32 tensors to a `.partial` file and renames it when it is complete.
pub fn write_safetensors(path: &Path, tensors: &[(&str, Shape, &[f32])]) -> Result<(), CheckpointError> {
    let wrong = |problem| CheckpointError::Write { path: path.to_path_buf(), problem };
    let mut header = Map::new();
    let mut offset = 0usize;
    for (name, shape, values) in tensors {
        if shape.elems() != values.len() {
            let problem = format!("tensor `{name}` has shape {shape} but {} values", values.len());
            return Err(wrong(problem));
        }
        let end = offset + values.len() * 4;
        let entry = json!({"dtype": "F32", "shape": shape.dims(), "data_offsets": [offset, end]});
        if header.insert(name.to_string(), entry).is_some() {
            return Err(wrong(format!("there are two tensors named `{name}`")));
        }
        offset = end;
    }
    let mut text = Value::Object(header).to_string();
    // Readers that cast in place want the data on a multiple of eight.
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut file = AtomicFile::create(path)?;
    file.write(&(text.len() as u64).to_le_bytes())?;
    file.write(text.as_bytes())?;
    let mut piece = Vec::with_capacity(PIECE_ELEMS * 4);
    for (_, _, values) in tensors {
        for values in values.chunks(PIECE_ELEMS) {
            piece.clear();
            values.iter().for_each(|v| piece.extend(v.to_le_bytes()));
            file.write(&piece)?;
        }
    }
    file.finish()
}
