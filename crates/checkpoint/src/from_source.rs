//! A checkpoint from bytes that the caller gives: whole files in memory, or sources that hand out ranges. Knows
//! which format a file has; no paths.

use crate::{
    ByteSource, Checkpoint, CheckpointError, ConfigFiles, Format, Metadata, SourceFile, gguf, safetensors,
};

impl Checkpoint {
    /// Opens a model that is part of the program; `name` stands for the path in messages.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, CheckpointError> {
        from_file(name, ConfigFiles::default(), bytes)
    }

    /// Opens a GGUF or safetensors file that was read into memory. Safetensors come without metadata.
    pub fn from_vec(name: &str, bytes: Vec<u8>) -> Result<Checkpoint, CheckpointError> {
        from_file(name, ConfigFiles::default(), bytes)
    }

    /// Opens a safetensors file and the files beside it, all read into memory.
    pub fn from_folder(
        name: &str,
        beside: ConfigFiles,
        weights: Vec<u8>,
    ) -> Result<Checkpoint, CheckpointError> {
        from_safetensors(name.to_string(), beside, vec![SourceFile::new(name, weights)])
    }

    /// Opens the files of a model wherever they are: all parts of a GGUF model in their order, or all shards of
    /// safetensors weights with the files beside them. Only headers are read now.
    pub fn from_sources(
        name: &str,
        beside: ConfigFiles,
        files: Vec<SourceFile>,
    ) -> Result<Checkpoint, CheckpointError> {
        match files.first() {
            Some(first) if gguf::is_gguf(first)? => from_gguf(name.to_string(), files),
            _ => from_safetensors(name.to_string(), beside, files),
        }
    }
}

fn from_file(
    name: &str,
    beside: ConfigFiles,
    bytes: impl ByteSource + 'static,
) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_sources(name, beside, vec![SourceFile::new(name, bytes)])
}

/// All parts of a GGUF model, in their order.
pub(crate) fn from_gguf(source: String, files: Vec<SourceFile>) -> Result<Checkpoint, CheckpointError> {
    let (mut first, mut tensors) = (None, Vec::new());
    for (index, file) in files.iter().enumerate() {
        let (metadata, found) = gguf::read(file, index)?;
        gguf::split::check_part(file.name(), &metadata, index, files.len())?;
        // The first part holds the model's metadata, the others only their own number.
        first.get_or_insert(metadata);
        tensors.extend(found);
    }
    let metadata = Metadata::Gguf(first.unwrap_or_default());
    Checkpoint::new(source, Format::Gguf, metadata, tensors, files)
}

/// All safetensors files of a model.
pub(crate) fn from_safetensors(
    source: String,
    beside: ConfigFiles,
    files: Vec<SourceFile>,
) -> Result<Checkpoint, CheckpointError> {
    let mut tensors = Vec::new();
    for (index, file) in files.iter().enumerate() {
        tensors.extend(safetensors::read(file, index)?);
    }
    Checkpoint::new(source, Format::Safetensors, Metadata::Config(beside), tensors, files)
}
