//! What awaits a device: results that arrive, work that has ended, its loss. For callers that may not block, such as
//! browsers; it knows no steps, only that there is something to collect.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use mambo_kernel::BackendError;

use crate::device::Device;
use crate::faults::Faults;

#[derive(Default)]
struct Waiting {
    /// Results that have arrived so far, and losses.
    arrivals: u64,
    wakers: Vec<Waker>,
}

/// Counts what arrives, and wakes whoever waits for it.
#[derive(Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Waiting>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Something has arrived.
    pub fn tell(&self) {
        let wakers = {
            let mut waiting = self.lock();
            waiting.arrivals += 1;
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn count(&self) -> u64 {
        self.lock().arrivals
    }

    fn wake_later(&self, waker: &Waker) {
        self.lock().wakers.push(waker.clone());
    }
}

/// A device from outside of its backend. Natively whoever waits has to ask again and again
/// ([`block_on`](crate::block_on) does).
#[derive(Clone)]
pub struct Watcher {
    device: wgpu::Device,
    queue: wgpu::Queue,
    faults: Faults,
    arrivals: Arrivals,
}

impl Watcher {
    pub(crate) fn of(device: &Device) -> Watcher {
        Watcher {
            device: device.device.clone(),
            queue: device.queue.clone(),
            faults: device.faults.clone(),
            arrivals: device.arrivals.clone(),
        }
    }

    /// The next results of any step or cell, or the loss of the device: time to collect again.
    pub fn arrival(&self) -> impl Future<Output = ()> + use<> {
        let (device, arrivals) = (self.device.clone(), self.arrivals.clone());
        // Counted from the call on, not from when it is first polled.
        let before = arrivals.count();
        poll_fn(move |context| {
            let _ = device.poll(wgpu::PollType::Poll);
            if arrivals.count() != before {
                return Poll::Ready(());
            }
            arrivals.wake_later(context.waker());
            Poll::Pending
        })
    }

    /// The loss of the device, with what it said.
    pub async fn loss(&self) -> String {
        loop {
            let arrival = self.arrival();
            if let Some(reason) = self.faults.lost() {
                return reason;
            }
            arrival.await;
        }
    }

    /// The end of all that was queued, or what went wrong meanwhile in `what`.
    pub async fn settled(&self, what: &str) -> Result<(), BackendError> {
        let done = Arc::new(AtomicBool::new(false));
        let (own, told) = (Arc::clone(&done), self.arrivals.clone());
        self.queue.on_submitted_work_done(move || {
            own.store(true, Ordering::Release);
            told.tell();
        });
        while !done.load(Ordering::Acquire) && self.faults.lost().is_none() {
            self.arrival().await;
        }
        self.faults.check(what)
    }
}
