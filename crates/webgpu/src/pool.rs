//! Memory of matrices: buffers that several share, so that a kernel may see several at once. What is loaded one after the
//! other lies in one buffer wherever it can.

use mambo_kernel::BackendError;

use crate::device::Device;
use crate::params::narrow;

/// Bytes of a vector of four words, on which matrices begin.
const VECTOR: usize = 16;
/// The least that a buffer has, and the most that one of small matrices has.
const LEAST_SHARED: usize = 1 << 20;
const MOST_SHARED: usize = 256 << 20;

/// A buffer, and how much of it is taken.
struct Chunk {
    buffer: wgpu::Buffer,
    taken: usize,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Pool {
    chunks: Vec<Chunk>,
    taken: usize,
}

impl Pool {
    /// Memory for a matrix: a buffer, and the vector at which it begins.
    pub fn take(
        &mut self,
        device: &Device,
        bytes: usize,
        what: &str,
    ) -> Result<(wgpu::Buffer, u32), BackendError> {
        let bytes = bytes.next_multiple_of(VECTOR);
        // The newest first, where its neighbours are.
        let fits = |chunk: &Chunk| chunk.taken + bytes <= chunk.buffer.size() as usize;
        let index = match self.chunks.iter().rposition(fits) {
            Some(index) => index,
            None => {
                let buffer = self.chunk(device, bytes, what)?;
                self.chunks.push(Chunk { buffer, taken: 0 });
                self.chunks.len() - 1
            }
        };
        let chunk = &mut self.chunks[index];
        let first = narrow(chunk.taken / VECTOR);
        chunk.taken += bytes;
        self.taken += bytes;
        Ok((chunk.buffer.clone(), first))
    }

    /// A buffer with room for a matrix, for one of its size after it (experts' other half) and for some small ones.
    fn chunk(&self, device: &Device, bytes: usize, what: &str) -> Result<wgpu::Buffer, BackendError> {
        let most = usize::try_from(device.shard_bytes()).unwrap_or(usize::MAX);
        let wanted =
            (2 * bytes + bytes / 16).max((self.taken / 8).clamp(LEAST_SHARED, MOST_SHARED)).min(most);
        if wanted > bytes
            && let Ok(buffer) = device.storage(wanted, what)
        {
            return Ok(buffer);
        }
        device.storage(bytes, what)
    }
}
