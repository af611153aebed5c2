//! Reads a GGUF file's header: metadata and the list of tensors with their byte ranges.

use mambo_tensor::{DType, Shape};

use super::cursor::{Cursor, Field};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufMetadata};
use crate::error::one_line;
use crate::{CheckpointError, SourceFile, TensorInfo, layout};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
const MAX_RANK: u32 = 4;
const MAX_ALIGNMENT: u64 = 1 << 20;
/// The smallest metadata entry: an empty key, a type and one byte.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// The smallest entry of the tensor list: an empty name, a rank, a type and an offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// Whether a file begins as a GGUF file does.
pub(crate) fn is_gguf(file: &SourceFile) -> Result<bool, CheckpointError> {
    let bytes = MAGIC.len() as u64;
    Ok(file.size() >= bytes && *file.read(0..bytes)? == *MAGIC)
}

/// Reads metadata and tensors; `index` is the file's number in the checkpoint.
pub(crate) fn read(
    file: &SourceFile,
    index: usize,
) -> Result<(GgufMetadata, Vec<TensorInfo>), CheckpointError> {
    // The length of a header stands nowhere: what was read twice is parsed twice.
    let mut head_bytes = file.head_bytes().max(1);
    loop {
        let head = file.read(0..head_bytes.min(file.size()))?;
        let mut cursor = Cursor::new(file.name(), &head, file.size());
        match read_head(&mut cursor, index) {
            Err(_) if cursor.left_the_head() => head_bytes = head_bytes.saturating_mul(2),
            result => return result,
        }
    }
}

fn read_head(
    cursor: &mut Cursor<'_>,
    index: usize,
) -> Result<(GgufMetadata, Vec<TensorInfo>), CheckpointError> {
    let file = cursor.file;
    let (tensor_count, entry_count) = read_counts(cursor)?;
    let metadata = read_metadata(cursor, entry_count)?;
    let alignment = alignment(file, &metadata)?;
    let entries = read_tensor_list(cursor, tensor_count, alignment)?;
    let data_start = cursor.position().next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let length = layout::tensor_bytes(file, &entry.name, entry.dtype, &entry.shape)?;
        let extent = (data_start, cursor.file_bytes());
        let range = layout::data_range(file, &entry.name, extent, entry.offset, length)?;
        let Entry { name, dtype, shape, .. } = entry;
        tensors.push(TensorInfo { name, dtype, shape, file: index, range });
    }
    layout::check_overlap(file, &tensors)?;
    Ok((metadata, tensors))
}

fn read_counts(cursor: &mut Cursor<'_>) -> Result<(u64, u64), CheckpointError> {
    let magic: [u8; 4] = cursor.array(Field::Header)?;
    if magic != *MAGIC {
        return Err(CheckpointError::Unsupported {
            file: cursor.file.to_string(),
            problem: "not a GGUF file: it does not begin with `GGUF`".to_string(),
            remedy: "check that the download is complete and not a web page".to_string(),
        });
    }
    let version = cursor.u32(Field::Header)?;
    let problem = match version {
        2 | 3 => None,
        v if matches!(v.swap_bytes(), 1..=3) => Some("it is big-endian".to_string()),
        v => Some(format!("GGUF version {v} is not known")),
    };
    if let Some(problem) = problem {
        let remedy = "convert the model to little-endian GGUF version 3".to_string();
        return Err(CheckpointError::Unsupported { file: cursor.file.to_string(), problem, remedy });
    }
    let tensor_count = cursor.u64(Field::Header)?;
    let entry_count = cursor.u64(Field::Header)?;
    Ok((tensor_count, entry_count))
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<GgufMetadata, CheckpointError> {
    cursor.expect_entries(count, MIN_ENTRY_BYTES, "metadata entries")?;
    let mut metadata = GgufMetadata::new(cursor.file);
    for i in 0..count {
        let key = cursor.string(Field::Key(i))?;
        let type_id = cursor.u32(Field::Value(key))?;
        let value = cursor.value(type_id, Field::Value(key))?;
        if metadata.get(key).is_some() {
            return Err(cursor.malformed(format!("metadata key `{key}` occurs twice")));
        }
        metadata.set(key, value);
    }
    Ok(metadata)
}

fn alignment(file: &str, metadata: &GgufMetadata) -> Result<u64, CheckpointError> {
    let alignment = metadata.u64(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let problem = format!(
            "metadata key `{ALIGNMENT_KEY}` is {alignment}, not a power of two up to {MAX_ALIGNMENT}"
        );
        return Err(CheckpointError::malformed(file, problem));
    }
    Ok(alignment)
}

struct Entry {
    name: String,
    dtype: DType,
    shape: Shape,
    offset: u64,
}

fn read_tensor_list(
    cursor: &mut Cursor<'_>,
    count: u64,
    alignment: u64,
) -> Result<Vec<Entry>, CheckpointError> {
    cursor.expect_entries(count, MIN_TENSOR_BYTES, "tensors")?;
    let mut entries = Vec::new();
    for i in 0..count {
        let name = cursor.string(Field::TensorName(i))?;
        if name.is_empty() {
            return Err(cursor.malformed(format!("entry {i} of the tensor list has no name")));
        }
        let shape = read_shape(cursor, name)?;
        let type_id = cursor.u32(Field::Tensor(name))?;
        let offset = cursor.u64(Field::Tensor(name))?;
        let dtype = DType::from_ggml_id(type_id).ok_or_else(|| unknown_type(cursor.file, name, type_id))?;
        if !offset.is_multiple_of(alignment) {
            let problem =
                format!("the data of tensor `{name}` starts at {offset}, not a multiple of {alignment}");
            return Err(cursor.malformed(problem));
        }
        entries.push(Entry { name: name.to_string(), dtype, shape, offset });
    }
    Ok(entries)
}

fn read_shape(cursor: &mut Cursor<'_>, name: &str) -> Result<Shape, CheckpointError> {
    let rank = cursor.u32(Field::Tensor(name))?;
    if rank > MAX_RANK {
        return Err(cursor.malformed(format!("tensor `{name}` has {rank} dimensions, more than {MAX_RANK}")));
    }
    let mut dims = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        let dim = cursor.u64(Field::Tensor(name))?;
        if dim == 0 {
            return Err(cursor.malformed(format!("tensor `{name}` has a dimension of size 0")));
        }
        let dim =
            usize::try_from(dim).map_err(|_| cursor.malformed(format!("tensor `{name}` is too large")))?;
        dims.push(dim);
    }
    // The file counts from the innermost dimension.
    dims.reverse();
    Shape::new(&dims).map_err(|e| cursor.malformed(format!("tensor `{name}`: {e}")))
}

fn unknown_type(file: &str, tensor: &str, type_id: u32) -> CheckpointError {
    let known: Vec<_> = DType::all().filter(|d| d.ggml_id().is_some()).map(DType::name).collect();
    CheckpointError::UnknownType {
        file: file.to_string(),
        tensor: one_line(tensor),
        type_name: format!("number {type_id}"),
        supported: known.join(", "),
    }
}
