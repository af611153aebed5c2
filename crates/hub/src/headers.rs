//! Files that stay on the hub: only the ranges that are asked for come over the network, and the start of a file, where
//! headers are, is kept.

use std::borrow::Cow;
use std::io::{self, Read};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, PoisonError};

use mambo_checkpoint::ByteSource;

use crate::client::{Bytes, Client, Target};

/// The first request for a file: most headers of safetensors are not longer.
const FIRST_BYTES: u64 = 64 << 10;
/// Bytes to skip at most where a server knows no ranges.
const MOST_SKIPPED: u64 = 64 << 20;

/// A file on the hub.
pub struct RemoteBytes {
    client: Arc<Client>,
    target: Target,
    size: u64,
    /// The file's first bytes.
    head: Mutex<Vec<u8>>,
}

impl RemoteBytes {
    pub fn new(client: Arc<Client>, target: Target, size: u64) -> RemoteBytes {
        RemoteBytes { client, target, size, head: Mutex::default() }
    }

    fn fetch(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let count = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let bytes = Bytes { from: range.start, to: Some(range.end) };
        let read =
            self.client.read(&self.target, Some(bytes), &mut |_| ControlFlow::Continue(()), |answer| {
                // A server that knows no ranges sends the file from its first byte.
                let skipped = if answer.status == 200 { range.start } else { 0 };
                if skipped > MOST_SKIPPED || answer.status == 416 {
                    return Err(io::Error::other("the server does not send parts of files"));
                }
                let mut body = answer.body.into_reader();
                io::copy(&mut body.by_ref().take(skipped), &mut io::sink())?;
                let mut fetched = vec![0; count];
                body.read_exact(&mut fetched)?;
                Ok(fetched)
            });
        read.map_err(io::Error::other)
    }
}

impl ByteSource for RemoteBytes {
    fn size(&self) -> u64 {
        self.size
    }

    fn head_bytes(&self) -> u64 {
        256 << 10
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        if range.start > range.end || range.end > self.size {
            let problem = format!("bytes {} to {} of {} do not exist", range.start, range.end, self.size);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
        }
        let mut head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        let known = head.len() as u64;
        if range.start > known {
            return Ok(Cow::Owned(self.fetch(range)?));
        }
        if range.end > known {
            let end = range.end.max(FIRST_BYTES).min(self.size);
            head.extend(self.fetch(known..end)?);
        }
        let index = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        Ok(Cow::Owned(head[index(range.start)?..index(range.end)?].to_vec()))
    }
}
