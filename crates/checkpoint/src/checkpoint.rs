//! The open checkpoint: metadata, and a list of named tensors whose bytes are read on demand. Knows no file
//! layout.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use mambo_tensor::{DType, Shape};

use crate::{CheckpointError, ConfigFiles, GgufMetadata, SourceFile, layout};

/// The family of files a checkpoint came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A folder with `config.json` and safetensors files.
    Safetensors,
    /// One GGUF file.
    Gguf,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "gguf",
        })
    }
}

/// What a checkpoint says about itself, in the form its format has.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each open checkpoint")]
pub enum Metadata {
    /// The JSON and text files beside safetensors weights.
    Config(ConfigFiles),
    /// The key-value section of a GGUF file.
    Gguf(GgufMetadata),
}

/// One tensor's name, type, shape and where its bytes are.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The name as the file has it.
    pub name: String,
    /// How the values are stored.
    pub dtype: DType,
    /// Row-major, outermost dimension first (GGUF's order reversed).
    pub shape: Shape,
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

impl TensorInfo {
    /// Bytes of the stored values.
    pub fn byte_len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Which of the checkpoint's files holds `part` of the values, and where: what a caller fetches before it is read.
    pub fn place(&self, part: Range<u64>) -> StoredRange {
        let start = self.range.start.saturating_add(part.start).min(self.range.end);
        let end = self.range.start.saturating_add(part.end).min(self.range.end);
        StoredRange { file: self.file, bytes: start..end.max(start) }
    }
}

/// Some bytes of one of a checkpoint's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRange {
    /// Number of the file, in the order they were opened in.
    pub file: usize,
    /// Its bytes.
    pub bytes: Range<u64>,
}

/// An open model: metadata and named tensors whose bytes stay where they are until someone reads them.
pub struct Checkpoint {
    source: String,
    format: Format,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: Vec<usize>,
    files: Vec<SourceFile>,
}

impl Checkpoint {
    /// Every tensor's range lies inside its file, which the readers have checked.
    pub(crate) fn new(
        source: String,
        format: Format,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
        files: Vec<SourceFile>,
    ) -> Result<Checkpoint, CheckpointError> {
        let by_name = layout::index_names(&tensors).map_err(|name| {
            CheckpointError::malformed(&source, format!("there are two tensors named `{name}`"))
        })?;
        Ok(Checkpoint { source, format, metadata, tensors, by_name, files })
    }

    /// The path or name the checkpoint was opened with.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The family of files.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What the checkpoint says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by(|&i| self.tensors[i].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[at]])
    }

    /// The stored bytes of a tensor of this checkpoint: borrowed where the file is in memory, mapped or read.
    pub fn read(&self, tensor: &TensorInfo) -> Result<Cow<'_, [u8]>, CheckpointError> {
        self.read_range(tensor, 0..tensor.byte_len())
    }

    /// Some of a tensor's stored bytes; `range` counts from the tensor's first byte.
    ///
    /// # Panics
    /// When the range leaves the tensor, or the tensor belongs to another checkpoint of more files.
    pub fn read_range(
        &self,
        tensor: &TensorInfo,
        range: Range<u64>,
    ) -> Result<Cow<'_, [u8]>, CheckpointError> {
        let (bytes, name) = (tensor.byte_len(), &tensor.name);
        assert!(range.start <= range.end && range.end <= bytes, "{range:?} of the {bytes} bytes of `{name}`");
        let first = tensor.range.start;
        self.files[tensor.file].read_tensor(name, first + range.start..first + range.end)
    }

    /// Tells the system that `range` of the tensor's bytes has been consumed, so that a loader that streams
    /// through a file keeps little of it resident. The bytes stay readable; nothing happens for bytes in the
    /// binary.
    pub fn release(&self, tensor: &TensorInfo, range: Range<u64>) {
        let StoredRange { file, bytes } = tensor.place(range);
        self.files[file].release(bytes);
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::byte_len).sum()
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.tensors.len();
        f.debug_struct("Checkpoint")
            .field("source", &self.source)
            .field("format", &self.format)
            .field("tensors", &tensors)
            .finish_non_exhaustive()
    }
}
