//! Small weights as f32, and tables that kernels look constants up in, all in one buffer. The host keeps them, so that the
//! buffer can grow while a model is loaded.

use std::collections::HashMap;

use mambo_kernel::BackendError;

use crate::device::Device;

/// The pool.
#[derive(Default)]
pub(crate) struct Vectors {
    words: Vec<u32>,
    /// Tables of constants by their words.
    constants: HashMap<Vec<u32>, u32>,
    buffer: Option<wgpu::Buffer>,
    /// Words that the buffer has already.
    uploaded: usize,
}

impl Vectors {
    /// Adds words and returns where they start: on a multiple of four, which some kernels read at once.
    pub fn add(&mut self, words: impl IntoIterator<Item = u32>) -> u32 {
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        let at = self.words.len();
        self.words.extend(words);
        crate::params::narrow(at)
    }

    /// Where a table of constants is; equal ones are kept once.
    pub fn constants(&mut self, words: Vec<u32>) -> u32 {
        if let Some(at) = self.constants.get(&words) {
            return *at;
        }
        let at = self.add(words.iter().copied());
        self.constants.insert(words, at);
        at
    }

    /// Some of the words.
    pub fn words(&self, at: u32, len: usize) -> &[u32] {
        &self.words[at as usize..][..len]
    }

    /// Brings what is new to the device.
    pub fn upload(&mut self, device: &Device) -> Result<wgpu::Buffer, BackendError> {
        let bytes = self.words.len() * 4;
        let buffer = match self.buffer.take() {
            Some(buffer) if buffer.size() >= bytes as u64 => buffer,
            _ => {
                self.uploaded = 0;
                device.storage(bytes.next_power_of_two().max(16), "norms, biases and other small weights")?
            }
        };
        device.write(&buffer, self.uploaded as u64, &self.words[self.uploaded..]);
        self.uploaded = self.words.len();
        self.buffer = Some(buffer.clone());
        Ok(buffer)
    }
}
