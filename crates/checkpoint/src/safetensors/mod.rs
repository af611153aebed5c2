//! Safetensors: a JSON header of names, types, shapes and byte ranges, then the data.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | length of the header, u64 little-endian |
//! | 8.. | header: `{"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}` |
//! | after it | data; offsets count from here |
//!
//! A sharded model has an index beside the shards: `{"weight_map": {"name": "shard file", ...}}`.

mod header;
#[cfg(any(unix, windows))]
mod shards;
mod writer;

pub(crate) use header::read;
#[cfg(any(unix, windows))]
pub(crate) use shards::Shards;
pub use writer::{SafetensorsTensor, SafetensorsWriter, write_safetensors};
