//! Bringing weights to the device: bytes pass through two pinned buffers, one of which is filled while the other is
//! being copied. Kernels that change a weight's layout run on the same stream, so they see what was copied before.

use std::sync::Arc;

use mambo_kernel::BackendError;

use crate::driver::{Context, Event, Stream};
use crate::launch::Launch;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::modules::Modules;

/// Bytes of a pinned buffer.
const STAGE_BYTES: usize = 8 << 20;

/// A pinned buffer, and when it may be filled again.
struct Stage {
    buffer: PinnedBuffer,
    copied: Event,
}

/// The pinned buffers.
pub(crate) struct Stages {
    stages: Vec<Stage>,
    next: usize,
}

impl Stages {
    pub fn new(context: &Arc<Context>) -> Result<Stages, BackendError> {
        let stage = |_| {
            Ok(Stage {
                buffer: PinnedBuffer::new(context, STAGE_BYTES, "the buffer that weights pass through")?,
                copied: Event::new(context, false)?,
            })
        };
        Ok(Stages { stages: (0..3).map(stage).collect::<Result<_, BackendError>>()?, next: 0 })
    }
}

/// What loading a weight may use.
pub(crate) struct Loader<'a> {
    pub context: &'a Arc<Context>,
    pub stream: &'a Stream,
    pub modules: &'a mut Modules,
    pub stages: &'a mut Stages,
}

impl Loader<'_> {
    /// Memory on the device, with anything in it.
    pub fn allocate(&self, bytes: usize, what: &str) -> Result<DeviceBuffer, BackendError> {
        DeviceBuffer::new(self.context, bytes, what)
    }

    /// Copies bytes to a place in a buffer; they may be dropped at once.
    pub fn upload(&mut self, bytes: &[u8], to: &DeviceBuffer, at: usize) -> Result<(), BackendError> {
        for (index, chunk) in bytes.chunks(STAGE_BYTES).enumerate() {
            let Stages { stages, next } = &mut *self.stages;
            *next = (*next + 1) % stages.len();
            let stage = &mut stages[*next];
            stage.copied.wait("copying weights to the device")?;
            stage.buffer.as_mut_slice()[..chunk.len()].copy_from_slice(chunk);
            to.copy_from_pinned(self.stream, at + index * STAGE_BYTES, &stage.buffer, 0, chunk.len())?;
            stage.copied.record(self.stream)?;
        }
        Ok(())
    }

    /// Runs a kernel after everything that was uploaded or launched before. Buffers that it reads may be dropped at
    /// once: freeing them waits for it.
    pub fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        self.modules.prepare(std::iter::once(launch))?;
        self.modules.launch(launch, self.stream, false)
    }
}
