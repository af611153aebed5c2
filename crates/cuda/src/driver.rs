//! The driver's context, streams and events, with errors in the contract's terms.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use mambo_kernel::BackendError;

/// The backend's name in errors.
pub(crate) const BACKEND: &str = "cuda";

/// What the driver says of a result.
pub(crate) fn reason(result: CUresult) -> String {
    let mut text = ptr::null();
    // SAFETY: the driver is loaded and gives a static string.
    let known =
        unsafe { sys::cuGetErrorString(result, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
    match known {
        // SAFETY: a C string that the driver owns.
        true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        false => format!("error {}", result as u32),
    }
}

/// Whether no later call can succeed.
fn is_lost(result: CUresult) -> bool {
    use CUresult::*;
    matches!(
        result,
        CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_SYSTEM_NOT_READY
            // What drivers say of a GPU that has fallen off its bus.
            | CUDA_ERROR_UNKNOWN
    )
}

/// The error of a call that failed.
pub(crate) fn error(result: CUresult, what: &str) -> BackendError {
    match is_lost(result) {
        true => {
            BackendError::Lost { backend: BACKEND.into(), reason: format!("{} in {what}", reason(result)) }
        }
        false => BackendError::Device { backend: BACKEND.into(), what: what.into(), reason: reason(result) },
    }
}

/// Checks a call.
pub(crate) fn check(result: CUresult, what: &str) -> Result<(), BackendError> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(error(result, what)) }
}

/// A device's primary context, which is shared with whatever else in the process uses the device.
pub(crate) struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device.
    pub fn open(device: sys::CUdevice) -> Result<Arc<Context>, BackendError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the driver was initialised and gave the device.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) }, "opening the device")?;
        let context = Context { raw, device };
        context.enter()?;
        Ok(Arc::new(context))
    }

    /// Makes it the calling thread's.
    pub fn enter(&self) -> Result<(), BackendError> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.raw) }, "entering the device")
    }

    /// Free and total bytes of the device.
    pub fn memory(&self) -> Result<(u64, u64), BackendError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both point to numbers, and the context is current.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "asking for free memory")?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. Errors of a device that is lost have been reported.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A queue of work.
pub(crate) struct Stream {
    pub raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, BackendError> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current.
        check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "making a stream")?;
        Ok(Stream { raw, context: Arc::clone(context) })
    }

    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for what was queued.
    pub fn synchronize(&self, what: &str) -> Result<(), BackendError> {
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::cuStreamSynchronize(self.raw) }, what)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was created and is destroyed once.
            unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A point in a stream.
pub(crate) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event; `timed` ones can be subtracted.
    pub fn new(context: &Arc<Context>, timed: bool) -> Result<Event, BackendError> {
        context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = match timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT as u32,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32,
        };
        // SAFETY: the context is current.
        check(unsafe { sys::cuEventCreate(&mut raw, flags) }, "making an event")?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    /// Marks what has been queued so far.
    pub fn record(&self, stream: &Stream) -> Result<(), BackendError> {
        // SAFETY: both live.
        check(unsafe { sys::cuEventRecord(self.raw, stream.raw) }, "marking the end of a step")
    }

    /// Whether all of that has ended.
    pub fn has_passed(&self) -> Result<bool, BackendError> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result, "a step").map(|()| true),
        }
    }

    /// Waits until it has.
    pub fn wait(&self, what: &str) -> Result<(), BackendError> {
        // SAFETY: the event lives.
        check(unsafe { sys::cuEventSynchronize(self.raw) }, what)
    }

    /// Milliseconds since an earlier event; both have passed.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32, BackendError> {
        let mut milliseconds = 0.0;
        // SAFETY: both live and were made with times.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw) };
        check(result, "reading a time")?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was created and is destroyed once.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
