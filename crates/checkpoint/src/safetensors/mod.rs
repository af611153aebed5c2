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
mod shards;
mod writer;

pub(crate) use header::read;
pub(crate) use shards::Shards;
pub use writer::{SafetensorsTensor, SafetensorsWriter, write_safetensors};
