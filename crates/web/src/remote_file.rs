//! A file elsewhere as the checkpoint reads it. Reads do not wait; what is not there yet is noted, so that whoever can
//! wait fetches it and asks again.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use mambo_checkpoint::{ByteSource, MaybeShared};

use crate::WebError;

/// Why bytes are not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// They have to be fetched first.
    Missing,
    /// They never will be.
    Failed(String),
}

/// A file whose bytes are fetched before they are read.
pub trait RemoteFile {
    /// Its name in messages.
    fn name(&self) -> String;
    /// Its size in bytes.
    fn size(&self) -> u64;
    /// Copies bytes that were fetched.
    fn read(&self, start: u64, into: &mut [u8]) -> Result<(), RemoteError>;
    /// Fetches bytes so that they can be read.
    fn fetch(&self, range: Range<u64>) -> impl Future<Output = Result<(), String>>;
    /// These will hardly be read again.
    fn release(&self, range: Range<u64>);
}

/// A remote file that notes what was asked of it in vain.
pub(crate) struct NotedFile<F> {
    pub file: Arc<F>,
    missing: Arc<Mutex<Option<Range<u64>>>>,
}

impl<F> Clone for NotedFile<F> {
    fn clone(&self) -> Self {
        NotedFile { file: Arc::clone(&self.file), missing: Arc::clone(&self.missing) }
    }
}

impl<F: RemoteFile> NotedFile<F> {
    pub fn new(file: F) -> NotedFile<F> {
        NotedFile { file: Arc::new(file), missing: Arc::default() }
    }

    /// What was read last and was not there, once.
    pub fn take_missing(&self) -> Option<Range<u64>> {
        self.missing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Fetches some bytes.
    pub async fn fetch(&self, range: Range<u64>) -> Result<(), WebError> {
        let fetched = self.file.fetch(range).await;
        fetched.map_err(|reason| WebError::Fetch { file: self.file.name(), reason })
    }
}

/// Enough for most vocabularies, and little to wait for.
const HEAD_BYTES: u64 = 4 << 20;

impl<F: RemoteFile + MaybeShared + 'static> ByteSource for NotedFile<F> {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, "the part does not fit into memory");
        let len = range.end.saturating_sub(range.start);
        let len =
            usize::try_from(len).ok().filter(|len| isize::try_from(*len).is_ok()).ok_or_else(too_large)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| too_large())?;
        bytes.resize(len, 0);
        match self.file.read(range.start, &mut bytes) {
            Ok(()) => Ok(Cow::Owned(bytes)),
            Err(RemoteError::Missing) => {
                *self.missing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(range);
                Err(io::Error::new(io::ErrorKind::WouldBlock, "the bytes have not been fetched"))
            }
            Err(RemoteError::Failed(reason)) => Err(io::Error::other(reason)),
        }
    }

    fn head_bytes(&self) -> u64 {
        HEAD_BYTES
    }

    fn release(&self, range: Range<u64>) {
        self.file.release(range);
    }
}
