//! Reads one safetensors file's header.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use mambo_tensor::{DType, Shape};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::error::one_line;
use crate::{CheckpointError, SourceFile, TensorInfo, layout};

/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Names of the format and ours; the rest of its types occur in no model we read.
const TYPES: [(&str, DType); 15] = [
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("F64", DType::F64),
    ("F8_E4M3", DType::F8E4M3),
    ("F8_E5M2", DType::F8E5M2),
    ("I8", DType::I8),
    ("I16", DType::I16),
    ("I32", DType::I32),
    ("I64", DType::I64),
    ("U8", DType::U8),
    ("U16", DType::U16),
    ("U32", DType::U32),
    ("U64", DType::U64),
    ("BOOL", DType::Bool),
];

/// The format's name of a type, if it has one.
pub(super) fn type_name(dtype: DType) -> Option<&'static str> {
    TYPES.iter().find(|(_, known)| *known == dtype).map(|(name, _)| *name)
}

/// Reads the tensors of one file; `file_index` is its number in the checkpoint.
pub(crate) fn read(source: &SourceFile, file_index: usize) -> Result<Vec<TensorInfo>, CheckpointError> {
    let file = source.name();
    let (header, data_start) = header_bytes(source)?;
    let header = std::str::from_utf8(&header)
        .map_err(|_| CheckpointError::malformed(file, "the header is not UTF-8 text"))?;
    let mut tensors = Vec::new();
    for (name, entry) in parse_entries(file, header)? {
        let entry = parse_entry(file, &name, &entry)?;
        let needed = layout::tensor_bytes(file, &name, entry.dtype, &entry.shape)?;
        let [begin, end] = entry.offsets;
        if end.checked_sub(begin) != Some(needed) {
            let problem = format!(
                "tensor `{name}` of type {} and shape {} takes {needed} bytes, but its offsets are {begin} to {end}",
                entry.dtype, entry.shape
            );
            return Err(CheckpointError::malformed(file, problem));
        }
        let range = layout::data_range(file, &name, (data_start, source.size()), begin, needed)?;
        tensors.push(TensorInfo { name, dtype: entry.dtype, shape: entry.shape, file: file_index, range });
    }
    layout::check_overlap(file, &tensors)?;
    // The header's order is by name or by type; the order of the data is the order to stream it in.
    tensors.sort_by_key(|t| t.range.start);
    Ok(tensors)
}

/// The header and the offset of the data behind it.
fn header_bytes(source: &SourceFile) -> Result<(Cow<'_, [u8]>, u64), CheckpointError> {
    let file = source.name();
    let check_left = |offset: u64, needed: u64| match source.size() - offset {
        left if needed > left => Err(CheckpointError::Truncated {
            file: file.to_string(),
            what: "the header".to_string(),
            offset,
            needed,
            left,
        }),
        _ => Ok(()),
    };
    check_left(0, 8)?;
    let length = source.read(0..8)?;
    let length = u64::from_le_bytes(std::array::from_fn(|i| length[i]));
    if length > MAX_HEADER_BYTES {
        let problem = format!("it announces a header of {length} bytes, so it is no safetensors file");
        return Err(CheckpointError::malformed(file, problem));
    }
    check_left(8, length)?;
    let data_start = 8 + length;
    Ok((source.read(8..data_start)?, data_start))
}

/// The header as a list, because a map would hide names that occur twice.
fn parse_entries(file: &str, header: &str) -> Result<Vec<(String, Value)>, CheckpointError> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, Value)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of tensors")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(name) = map.next_key::<String>()? {
                if name == "__metadata__" {
                    map.next_value::<IgnoredAny>()?;
                } else {
                    entries.push((name, map.next_value()?));
                }
            }
            Ok(entries)
        }
    }

    let damaged =
        |e: serde_json::Error| CheckpointError::malformed(file, format!("the header is not valid: {e}"));
    let mut parser = serde_json::Deserializer::from_str(header);
    let entries = parser.deserialize_map(Entries).map_err(damaged)?;
    parser.end().map_err(damaged)?;
    let mut seen = HashSet::new();
    if let Some((name, _)) = entries.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        return Err(CheckpointError::malformed(file, format!("there are two tensors named `{name}`")));
    }
    Ok(entries)
}

struct Entry {
    dtype: DType,
    shape: Shape,
    offsets: [u64; 2],
}

fn parse_entry(file: &str, name: &str, entry: &Value) -> Result<Entry, CheckpointError> {
    let bad =
        |field: &str| CheckpointError::malformed(file, format!("tensor `{name}` has no valid `{field}`"));
    let type_name = entry.get("dtype").and_then(Value::as_str).ok_or_else(|| bad("dtype"))?;
    let dtype =
        TYPES.iter().find(|(known, _)| *known == type_name).map(|(_, dtype)| *dtype).ok_or_else(|| {
            CheckpointError::UnknownType {
                file: file.to_string(),
                tensor: one_line(name),
                type_name: one_line(type_name),
                supported: TYPES.map(|(known, _)| known).join(", "),
            }
        })?;
    let dims = entry.get("shape").and_then(Value::as_array).ok_or_else(|| bad("shape"))?;
    let dims = dims
        .iter()
        .map(|d| d.as_u64().and_then(|d| usize::try_from(d).ok()))
        .collect::<Option<Vec<usize>>>()
        .ok_or_else(|| bad("shape"))?;
    let shape =
        Shape::new(&dims).map_err(|e| CheckpointError::malformed(file, format!("tensor `{name}`: {e}")))?;
    let offsets = match entry.get("data_offsets").and_then(Value::as_array).map(Vec::as_slice) {
        Some([begin, end]) => begin.as_u64().zip(end.as_u64()),
        _ => None,
    };
    let (begin, end) = offsets.ok_or_else(|| bad("data_offsets"))?;
    Ok(Entry { dtype, shape, offsets: [begin, end] })
}
