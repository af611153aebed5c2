//! A file of this machine, mapped instead of read. The only file of the crate with `unsafe`; compiled where the
//! system can map files.
//!
//! Knows files and pages, no formats.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::source::slice;
use crate::special_file::refuse_special;
use crate::{ByteSource, CheckpointError, SourceFile};

/// Maps a whole file for reading.
pub(crate) fn map(path: &Path) -> Result<SourceFile, CheckpointError> {
    let name = path.display().to_string();
    refuse_special(path)?;
    let file = File::open(path).map_err(CheckpointError::io("open", path))?;
    let metadata = file.metadata().map_err(CheckpointError::io("read", path))?;
    // Systems refuse to map nothing.
    if metadata.len() == 0 {
        return Ok(SourceFile::new(name, Vec::new()));
    }
    // SAFETY: the mapping is read-only and only ever seen as `&[u8]`, whose every value is valid. Like
    // every program that maps its weights, this relies on nobody shortening or rewriting the file while
    // it is open; converters, ours included, replace files by renaming, which leaves a mapping intact.
    let map = unsafe { Mmap::map(&file) }.map_err(CheckpointError::io("map", path))?;
    Ok(SourceFile::new(name, Mapping(map)))
}

struct Mapping(Mmap);

impl ByteSource for Mapping {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        slice(&self.0, range)
    }

    /// Lets the system take back the pages. Where it cannot be told, it decides by itself.
    #[cfg(unix)]
    fn release(&self, range: Range<u64>) {
        let index = |offset: u64| usize::try_from(offset).ok().filter(|&index| index <= self.0.len());
        if let Some((start, end)) = index(range.start).zip(index(range.end))
            && start < end
        {
            // SAFETY: the mapping is shared, read-only and backed by a file, so a dropped page is read from
            // the file again with the same content when it is next touched; no reference sees a change.
            // A refusal only means that the pages stay.
            let _ = unsafe {
                self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
}
