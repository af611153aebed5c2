//! GGUF: one file with typed metadata, a tensor list and aligned tensor data, all little-endian.
//!
//! | part | layout |
//! |---|---|
//! | header | `GGUF`, version u32, tensor count u64, metadata count u64 |
//! | metadata | per entry: key, type u32, value |
//! | tensor list | per tensor: name, rank u32, dimensions u64 (innermost first), type u32, offset u64 |
//! | data | from the next multiple of `general.alignment` (32 when absent); offsets count from here |
//!
//! A string is its length u64 and UTF-8 bytes; an array its element type u32, length u64 and elements.

mod cursor;
mod metadata;
mod reader;
pub(crate) mod split;
mod value;
mod writer;

pub use metadata::GgufMetadata;
pub use value::{GgufArray, GgufValue};
pub use writer::{GgufTensor, GgufWriter};

pub(crate) use reader::{is_gguf, read};

/// Alignment of the data section and of every tensor in it, unless the file says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
