//! Model files: safetensors folders, GGUF files and bytes in the binary become one [`Checkpoint`] of named
//! tensors and metadata; results and conversions are written back as files.
//!
//! Paths open where files can be mapped (`open.rs`, `mapping.rs`). Everywhere else, and for files that are not on
//! this machine, the caller gives a [`ByteSource`] for each file. Offsets and sizes in files are u64; they become
//! addresses only where bytes in memory are indexed.
//!
//! This crate knows file formats. It must not know what a tensor is for: no architecture names, no model
//! maths, no conversion of values. Readers survive any bytes: every count, length and offset is checked
//! against the file's size before it is used.

mod atomic_file;
mod checkpoint;
mod config;
mod disk_space;
mod error;
mod from_source;
mod gguf;
mod json;
mod layout;
#[cfg(any(unix, windows))]
mod mapping;
#[cfg(any(unix, windows))]
mod open;
mod safetensors;
mod source;
#[cfg(any(unix, windows))]
mod special_file;

pub use atomic_file::AtomicFile;
pub use checkpoint::{Checkpoint, Format, Metadata, StoredRange, TensorInfo};
pub use config::ConfigFiles;
pub use disk_space::free_bytes;
pub use error::CheckpointError;
pub use gguf::{GgufArray, GgufMetadata, GgufTensor, GgufValue, GgufWriter};
pub use json::{json_f32, json_number, parse_json};
pub use safetensors::{SafetensorsTensor, SafetensorsWriter, write_safetensors};
pub use source::{ByteSource, MaybeShared, SourceFile};
