//! GGUF models in several files, `STEM-00001-of-0000N.gguf`: finds the parts and checks that they belong
//! together. Knows names and the `split.*` keys, nothing else of a file's inside.

use std::path::{Path, PathBuf};

use super::GgufMetadata;
use crate::CheckpointError;

/// More parts than this is a broken file, not a large model.
const MAX_PARTS: u64 = 10_000;

/// How many files the model of this metadata is split into.
pub(crate) fn part_count(file: &str, metadata: &GgufMetadata) -> Result<usize, CheckpointError> {
    let count = metadata.u64("split.count")?.unwrap_or(1).max(1);
    if count > MAX_PARTS {
        let problem = format!("metadata key `split.count` is {count}, more than {MAX_PARTS}");
        return Err(CheckpointError::malformed(file, problem));
    }
    Ok(count as usize)
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

/// The paths of all parts, from the path of any of them.
pub(crate) fn part_paths(path: &Path, count: usize) -> Result<Vec<PathBuf>, CheckpointError> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = part_stem(&name).filter(|(_, total)| *total == count).map(|(stem, _)| stem);
    let Some(stem) = stem else {
        return Err(CheckpointError::Unsupported {
            file: path.display().to_string(),
            problem: format!(
                "the model is split into {count} files, but the name does not say which part this is"
            ),
            remedy: format!("give the files their names back: NAME-00001-of-{count:05}.gguf and so on"),
        });
    };
    let paths: Vec<PathBuf> =
        (1..=count).map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf"))).collect();
    match paths.iter().find(|p| !p.exists()) {
        None => Ok(paths),
        Some(missing) => Err(CheckpointError::NotACheckpoint {
            path: missing.clone(),
            problem: format!("this part of a model split into {count} files is missing"),
            remedy: "download it into the same folder".to_string(),
        }),
    }
}

/// The common name of a part and the number of parts, from `STEM-00002-of-00005.gguf`.
pub(crate) fn part_stem(name: &str) -> Option<(&str, usize)> {
    let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (digits(part) && digits(total)).then(|| Some((stem, total.parse().ok()?)))?
}
