//! Where the bytes of a model file come from. Knows ranges of bytes; no formats, and no paths beyond a name for
//! messages.
//!
//! Files in memory hand out what they hold; a source that has to fetch its bytes hands out copies. Offsets are
//! u64 throughout, so a machine with 32-bit addresses can describe a file that is larger than its memory.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::path::Path;

use crate::CheckpointError;

/// What threads may share, on targets that have threads. In a browser a file belongs to the thread that opened it.
#[cfg(not(target_family = "wasm"))]
pub trait MaybeShared: Send + Sync {}

#[cfg(not(target_family = "wasm"))]
impl<T: Send + Sync + ?Sized> MaybeShared for T {}

/// What threads may share, on targets that have threads.
#[cfg(target_family = "wasm")]
pub trait MaybeShared {}

#[cfg(target_family = "wasm")]
impl<T: ?Sized> MaybeShared for T {}

/// The bytes of one file, by range.
pub trait ByteSource: MaybeShared {
    /// Size of the file in bytes.
    fn size(&self) -> u64;

    /// The bytes of `range`, exactly as many as it spans: borrowed where the file is in memory, copied where it is
    /// not. Callers ask for a header at a time, a tensor, or the part of a tensor that belongs together.
    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>>;

    /// Bytes to read at first from a header whose length stands nowhere: many where they cost nothing.
    fn head_bytes(&self) -> u64 {
        16 << 20
    }

    /// A hint that the bytes of `range` have been consumed. They stay readable.
    fn release(&self, _range: Range<u64>) {}
}

impl ByteSource for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        slice(self, range)
    }
}

impl ByteSource for &'static [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        slice(self, range)
    }
}

/// A range of bytes in memory; this is where a file's offsets become addresses.
pub(crate) fn slice(bytes: &[u8], range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
    let index = |offset: u64| usize::try_from(offset).ok();
    let found = index(range.start).zip(index(range.end)).and_then(|(start, end)| bytes.get(start..end));
    found.map(Cow::Borrowed).ok_or_else(|| {
        let (start, end, size) = (range.start, range.end, bytes.len());
        io::Error::new(io::ErrorKind::UnexpectedEof, format!("bytes {start} to {end} of {size} do not exist"))
    })
}

/// One file of a checkpoint.
pub struct SourceFile {
    name: String,
    source: Box<dyn ByteSource>,
}

impl SourceFile {
    /// A file whose bytes come from `source`; `name` is its path, address or title in messages.
    pub fn new(name: impl Into<String>, source: impl ByteSource + 'static) -> SourceFile {
        SourceFile { name: name.into(), source: Box::new(source) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn size(&self) -> u64 {
        self.source.size()
    }

    pub(crate) fn head_bytes(&self) -> u64 {
        self.source.head_bytes()
    }

    /// Reads a part of the header.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, CheckpointError> {
        self.exactly(range).map_err(CheckpointError::io("read", Path::new(&self.name)))
    }

    /// Reads bytes that belong to a tensor.
    pub(crate) fn read_tensor(
        &self,
        tensor: &str,
        range: Range<u64>,
    ) -> Result<Cow<'_, [u8]>, CheckpointError> {
        let bytes = range.end.saturating_sub(range.start);
        if usize::try_from(bytes).is_err() {
            let (file, tensor) = (self.name.clone(), tensor.to_string());
            return Err(CheckpointError::TooLarge { file, tensor, bytes });
        }
        self.exactly(range).map_err(|source| CheckpointError::ReadTensor {
            file: self.name.clone(),
            tensor: tensor.to_string(),
            source,
        })
    }

    pub(crate) fn release(&self, range: Range<u64>) {
        self.source.release(range);
    }

    /// Readers index into what they asked for, so a source that hands out less must not get past here.
    fn exactly(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let wanted = range.end.saturating_sub(range.start);
        let bytes = self.source.read(range)?;
        match bytes.len() as u64 == wanted {
            true => Ok(bytes),
            false => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{wanted} bytes were asked for, {} came", bytes.len()),
            )),
        }
    }
}
