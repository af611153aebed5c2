//! GGUF models in several files: checks that the parts belong together. Knows the `split.*` keys, nothing else of
//! a file's contents and not how files are named.

use super::GgufMetadata;
use crate::CheckpointError;

/// More parts than this is a broken file, not a large model.
const MAX_PARTS: usize = 10_000;

/// How many files the model of this metadata is split into.
pub(crate) fn part_count(file: &str, metadata: &GgufMetadata) -> Result<usize, CheckpointError> {
    let count = metadata.u64("split.count")?.unwrap_or(1).max(1);
    usize::try_from(count).ok().filter(|&count| count <= MAX_PARTS).ok_or_else(|| {
        let problem = format!("metadata key `split.count` is {count}, more than {MAX_PARTS}");
        CheckpointError::malformed(file, problem)
    })
}

/// Checks that the file is part `index` (from 0) of `count`.
pub(crate) fn check_part(
    file: &str,
    metadata: &GgufMetadata,
    index: usize,
    count: usize,
) -> Result<(), CheckpointError> {
    let number = metadata.u64("split.no")?.unwrap_or(0);
    if part_count(file, metadata)? == count && number == index as u64 {
        return Ok(());
    }
    Err(CheckpointError::Unsupported {
        file: file.to_string(),
        problem: format!("by its metadata this is not part {} of {count}", index + 1),
        remedy: "download all parts of one release again, under their own names".to_string(),
    })
}
