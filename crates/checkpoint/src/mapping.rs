//! The bytes of a file, mapped instead of read. The only file of the crate with `unsafe`.
//!
//! Knows files and pages, no formats.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::CheckpointError;

/// Where a checkpoint's bytes live.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a whole file for reading.
    pub fn map(path: &Path) -> Result<Bytes, CheckpointError> {
        let file = File::open(path).map_err(CheckpointError::io("open", path))?;
        let metadata = file.metadata().map_err(CheckpointError::io("read", path))?;
        if !metadata.is_file() {
            return Err(CheckpointError::NotACheckpoint {
                path: path.to_path_buf(),
                problem: "not a regular file".to_string(),
                remedy: "give a model file or the folder that holds it".to_string(),
            });
        }
        if metadata.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        // SAFETY: the mapping is read-only and only ever seen as `&[u8]`, whose every value is valid. Like
        // every program that maps its weights, this relies on nobody shortening or rewriting the file while
        // it is open; converters, ours included, replace files by renaming, which leaves a mapping intact.
        let map = unsafe { Mmap::map(&file) }.map_err(CheckpointError::io("map", path))?;
        Ok(Bytes::Mapped(map))
    }

    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// Lets the system take back the pages of `range`, which lies inside the bytes.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        if let Bytes::Mapped(map) = self
            && !range.is_empty()
        {
            // SAFETY: the mapping is shared, read-only and backed by a file, so a dropped page is read from
            // the file again with the same content when it is next touched; no reference sees a change.
            // A refusal only means that the pages stay.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
    }

    /// Elsewhere the system decides by itself.
    #[cfg(not(unix))]
    pub fn release(&self, _range: Range<usize>) {}
}
