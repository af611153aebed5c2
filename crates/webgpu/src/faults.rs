//! What the device reports outside of calls: validation and memory errors, and its loss. They are kept until the next call
//! that can fail.

use std::sync::{Arc, Mutex, MutexGuard};

use mambo_kernel::BackendError;

use crate::watcher::Arrivals;

/// The backend's name in errors.
pub(crate) const BACKEND: &str = "webgpu";

/// An error as it is kept: wgpu's own cannot be shared in a browser.
enum Kept {
    OutOfMemory,
    Other(String),
}

#[derive(Default)]
struct Reported {
    error: Option<Kept>,
    lost: Option<String>,
}

/// Shared with the callbacks of the device.
#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Reported>>);

impl Faults {
    /// Listens to a device; its loss is an arrival.
    pub fn of(device: &wgpu::Device, arrivals: &Arrivals) -> Faults {
        let faults = Faults::default();
        let own = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error| {
            let kept = match error {
                wgpu::Error::OutOfMemory { .. } => Kept::OutOfMemory,
                other => Kept::Other(one_line(&other.to_string())),
            };
            // The first is the cause, the rest follow from it.
            own.lock().error.get_or_insert(kept);
        }));
        let (own, arrivals) = (faults.clone(), arrivals.clone());
        device.set_device_lost_callback(move |reason, message| {
            let text = if message.is_empty() { format!("{reason:?}") } else { message };
            own.lock().lost.get_or_insert(text);
            arrivals.tell();
        });
        faults
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Why the device is lost, if it is.
    pub fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    /// The error that was reported since, while doing `what`; a lost device stays lost.
    pub fn check(&self, what: &str) -> Result<(), BackendError> {
        self.check_bytes(what, 0)
    }

    /// The same where so many bytes were asked for.
    pub fn check_bytes(&self, what: &str, bytes: u64) -> Result<(), BackendError> {
        let mut reported = self.lock();
        if let Some(reason) = &reported.lost {
            return Err(BackendError::Lost { backend: BACKEND.into(), reason: reason.clone() });
        }
        match reported.error.take() {
            None => Ok(()),
            Some(Kept::OutOfMemory) => Err(out_of_memory(what, bytes)),
            Some(Kept::Other(reason)) => Err(failed(what, reason)),
        }
    }
}

/// Memory ran out.
pub(crate) fn out_of_memory(what: &str, bytes: u64) -> BackendError {
    BackendError::OutOfMemory { what: what.to_owned(), bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }
}

/// The device failed.
pub(crate) fn failed(what: &str, reason: String) -> BackendError {
    BackendError::Device { backend: BACKEND.into(), what: what.to_owned(), reason }
}

/// wgpu's messages have a line for every cause.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
