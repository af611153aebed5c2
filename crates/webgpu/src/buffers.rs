//! Memory of the device.

use mambo_kernel::BackendError;

use crate::device::Device;
use crate::faults::out_of_memory;

const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

impl Device {
    /// A buffer that kernels see whole, zeroed; of one vector at least, because nothing can be bound that is empty.
    pub fn storage(&self, bytes: usize, what: &str) -> Result<wgpu::Buffer, BackendError> {
        let bytes = (bytes as u64).max(16).next_multiple_of(16);
        if bytes > self.shard_bytes() {
            let limit = self.shard_bytes();
            return Err(out_of_memory(&format!("{what}, of which this device binds {limit} at most"), bytes));
        }
        self.buffer(bytes, STORAGE, what)
    }

    /// A buffer that is copied through.
    pub fn copied(&self, bytes: usize, what: &str) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        self.buffer((bytes as u64).max(16), usage, what)
    }

    /// A buffer that the host reads.
    pub fn read_back(&self, bytes: usize, what: &str) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.buffer((bytes as u64).max(16), usage, what)
    }

    /// A buffer of parameters.
    pub fn uniform(&self, bytes: usize, what: &str) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        self.buffer((bytes as u64).max(16), usage, what)
    }

    fn buffer(&self, size: u64, usage: wgpu::BufferUsages, what: &str) -> Result<wgpu::Buffer, BackendError> {
        if size > self.info.max_buffer_bytes {
            return Err(out_of_memory(what, size));
        }
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        self.faults.check_bytes(what, size)?;
        Ok(buffer)
    }

    /// Queues writing words to a place in a buffer.
    pub fn write(&self, buffer: &wgpu::Buffer, word: u64, words: &[u32]) {
        if !words.is_empty() {
            self.queue.write_buffer(buffer, word * 4, &bytes_of(words));
        }
    }

    /// Sends what was queued on its way, so that its memory is used again.
    pub fn flush(&self) {
        self.queue.submit([]);
        // In a browser this does nothing, and nothing has to be done.
        let _ = self.device.poll(wgpu::PollType::Poll);
    }
}

/// Little-endian bytes.
pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; words.len() * 4];
    for (four, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *four = word.to_le_bytes();
    }
    bytes
}
