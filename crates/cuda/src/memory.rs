//! Memory of the device, and memory of the host that the device can read and write.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use mambo_kernel::BackendError;

use crate::driver::{Context, Stream, check, error};
use crate::params::Ptr;

/// The error of an allocation of device memory that failed.
fn allocation_error(context: &Context, result: CUresult, what: &str, bytes: usize) -> BackendError {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let mib = |bytes: u64| bytes >> 20;
            let state = context.memory().map_or(String::new(), |(free, total)| {
                format!(
                    " on the GPU, which has {} of {} MiB free (`nvidia-smi` shows what other programs hold)",
                    mib(free),
                    mib(total)
                )
            });
            BackendError::OutOfMemory { what: format!("{what}{state}"), bytes }
        }
        _ => error(result, &format!("allocating {what}")),
    }
}

/// Bytes on the device, freed when dropped.
pub(crate) struct DeviceBuffer {
    address: u64,
    bytes: usize,
    context: Arc<Context>,
}

impl DeviceBuffer {
    /// Allocates bytes with anything in them; none need no memory.
    pub fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<DeviceBuffer, BackendError> {
        context.enter()?;
        let mut address = 0;
        if bytes > 0 {
            // SAFETY: the context is current.
            match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
                CUresult::CUDA_SUCCESS => {}
                result => return Err(allocation_error(context, result, what, bytes)),
            }
        }
        Ok(DeviceBuffer { address, bytes, context: Arc::clone(context) })
    }

    /// The same, filled with zeros by the time that anything queued later on the stream runs.
    pub fn zeroed(
        context: &Arc<Context>,
        stream: &Stream,
        bytes: usize,
        what: &str,
    ) -> Result<DeviceBuffer, BackendError> {
        let buffer = DeviceBuffer::new(context, bytes, what)?;
        buffer.fill(stream, 0)?;
        Ok(buffer)
    }

    /// Queues filling it with a byte.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<(), BackendError> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is this buffer's.
        check(unsafe { sys::cuMemsetD8Async(self.address, byte, self.bytes, stream.raw) }, "filling memory")
    }

    /// Its start.
    pub fn ptr<T>(&self) -> Ptr<T> {
        Ptr::at(self.address)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn range(&self, at: usize, bytes: usize) -> u64 {
        let end = at.checked_add(bytes).filter(|end| *end <= self.bytes);
        assert!(end.is_some(), "{bytes} bytes at {at} of a buffer of {}", self.bytes);
        self.address + at as u64
    }

    /// Queues a copy of some of the host's pinned bytes to a place in the buffer. They must not change until the
    /// stream has passed this point.
    pub fn copy_from_pinned(
        &self,
        stream: &Stream,
        at: usize,
        from: &PinnedBuffer,
        from_at: usize,
        bytes: usize,
    ) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = (self.range(at, bytes), from.range(from_at, bytes));
        // SAFETY: both ranges were checked. The caller keeps the pinned one.
        check(
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream.raw) },
            "copying to the device",
        )
    }

    /// Queues a copy of some of the buffer to the host's pinned bytes.
    pub fn copy_to_pinned(
        &self,
        stream: &Stream,
        at: usize,
        to: &PinnedBuffer,
        to_at: usize,
        bytes: usize,
    ) -> Result<(), BackendError> {
        self.copy_rows_to_pinned(stream, Strided { at, stride: bytes, width: bytes, rows: 1 }, to, to_at)
    }

    /// Queues a copy of rows of the buffer to the host's pinned bytes, one after the other without padding.
    pub fn copy_rows_to_pinned(
        &self,
        stream: &Stream,
        from: Strided,
        to: &PinnedBuffer,
        to_at: usize,
    ) -> Result<(), BackendError> {
        if from.rows == 0 || from.width == 0 {
            return Ok(());
        }
        let bytes = (from.rows - 1) * from.stride + from.width;
        let host = to.range(to_at, from.rows * from.width).cast::<c_void>();
        let device = self.range(from.at, bytes);
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: device,
            srcArray: ptr::null_mut(),
            srcPitch: from.stride,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host,
            dstDevice: 0,
            dstArray: ptr::null_mut(),
            dstPitch: from.width,
            WidthInBytes: from.width,
            Height: from.rows,
        };
        // SAFETY: both ranges were checked, and the pinned one is not read before the stream has passed.
        check(unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.raw) }, "copying from the device")
    }

    /// Queues a copy within the buffer; the two ranges are apart or equal.
    pub fn copy_within(
        &self,
        stream: &Stream,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), BackendError> {
        if bytes == 0 || from == to {
            return Ok(());
        }
        let (from, to) = (self.range(from, bytes), self.range(to, bytes));
        // SAFETY: both ranges were checked.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw) }, "copying on the device")
    }
}

/// Rows in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided {
    /// Where the first starts.
    pub at: usize,
    /// Bytes from one to the next.
    pub stride: usize,
    /// Bytes of each that are copied.
    pub width: usize,
    pub rows: usize,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address != 0 && self.context.enter().is_ok() {
            // SAFETY: it was allocated here and is freed once. Work that still uses it ends first: freeing waits.
            unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Bytes of the host that stay where they are, so that the device copies them by itself; kernels can write them, too.
pub(crate) struct PinnedBuffer {
    data: Option<NonNull<u8>>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: it owns its bytes.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(context: &Arc<Context>, bytes: usize, what: &str) -> Result<PinnedBuffer, BackendError> {
        context.enter()?;
        let mut data = ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the context is current.
            match unsafe { sys::cuMemHostAlloc(&mut data, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) } {
                CUresult::CUDA_SUCCESS => {}
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    let what = format!("{what} in the host's memory, where the GPU can read it");
                    return Err(BackendError::OutOfMemory { what, bytes });
                }
                result => return Err(error(result, &format!("allocating {what}"))),
            }
            // SAFETY: the driver has just allocated so many bytes. Initialised, so that slices of it can be made.
            unsafe { ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        }
        Ok(PinnedBuffer { data: NonNull::new(data.cast()), bytes, context: Arc::clone(context) })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where kernels find it: with one address space for host and device, that is where the host does.
    pub fn ptr<T>(&self) -> Ptr<T> {
        Ptr::at(self.data.map_or(0, |data| data.as_ptr() as u64))
    }

    fn range(&self, at: usize, bytes: usize) -> *mut u8 {
        let end = at.checked_add(bytes).filter(|end| *end <= self.bytes);
        assert!(end.is_some(), "{bytes} bytes at {at} of a buffer of {}", self.bytes);
        // SAFETY: within the allocation.
        self.data.map_or(ptr::null_mut(), |data| unsafe { data.as_ptr().add(at) })
    }

    /// Its bytes, while the device does not write them.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: they are initialised; callers look after the event that ends the device's writing.
        self.data.map_or(&[], |data| unsafe { std::slice::from_raw_parts(data.as_ptr(), self.bytes) })
    }

    /// Its bytes to write, while the device does not read them.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed alone.
        self.data.map_or(&mut [], |data| unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), self.bytes) })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(data) = self.data.filter(|_| self.context.enter().is_ok()) {
            // SAFETY: it was allocated here and is freed once.
            unsafe { sys::cuMemFreeHost(data.as_ptr().cast()) };
        }
    }
}
