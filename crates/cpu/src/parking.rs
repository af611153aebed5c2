//! Waiting in three stages: spin, yield, park. Knows nothing of what is waited for.
//!
//! Where the one that is waited for was last seen on the waiter's own core, the waiter yields at once: as long as it
//! spins there, nothing happens that it waits for.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Thread, current, park_timeout, yield_now};
use std::time::{Duration, Instant};

use crate::cores::Cores;

/// Spins between two looks at the clock.
const SPINS_PER_CHECK: u32 = 32;

/// Lets threads wait, and finally park, until a condition holds.
pub(crate) struct Parking {
    /// How long a waiter spins before it yields.
    yield_after: Duration,
    /// How long it waits before it parks.
    park_after: Duration,
    /// Longest time parked before it checks the condition unasked.
    recheck: Duration,
    /// Where threads run.
    cores: Arc<Cores>,
    /// Length of `parked`, written under its lock and read without it.
    count: AtomicUsize,
    /// Parked threads, by index.
    parked: Mutex<Vec<(usize, Thread)>>,
}

impl Parking {
    pub fn new(
        yield_after: Duration,
        park_after: Duration,
        recheck: Duration,
        cores: &Arc<Cores>,
    ) -> Parking {
        let (count, parked) = (AtomicUsize::new(0), Mutex::default());
        Parking { yield_after, park_after, recheck, cores: Arc::clone(cores), count, parked }
    }

    /// Waits until `ready` returns true: spins, then yields, then parks. [`Parking::wake`] must be called after the
    /// condition becomes true.
    pub fn wait(&self, thread: usize, mut ready: impl FnMut() -> bool) {
        let mut begin = None;
        loop {
            for _ in 0..SPINS_PER_CHECK {
                if ready() {
                    return;
                }
                spin_loop();
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited > self.park_after {
                break;
            }
            if self.cores.is_shared(thread) || waited > self.yield_after {
                yield_now();
            }
        }
        loop {
            let mut parked = self.lock();
            parked.push((thread, current()));
            // Published before the last check: if the condition changes after that, the waking thread sees us.
            self.count.store(parked.len(), Ordering::SeqCst);
            drop(parked);
            let is_ready = ready();
            if !is_ready {
                park_timeout(self.recheck);
            }
            let mut parked = self.lock();
            if let Some(index) = parked.iter().position(|(other, _)| *other == thread) {
                parked.swap_remove(index);
                self.count.store(parked.len(), Ordering::SeqCst);
            }
            drop(parked);
            if is_ready || ready() {
                return;
            }
        }
    }

    /// Wakes the parked ones among the first `threads`; to be called after the change they wait for.
    pub fn wake(&self, threads: usize) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = self.lock();
            let woken: Vec<_> = list.extract_if(.., |(thread, _)| *thread < threads).collect();
            self.count.store(list.len(), Ordering::SeqCst);
            // A woken thread takes the lock again.
            drop(list);
            woken.iter().for_each(|(_, thread)| thread.unpark());
        }
    }

    /// Empties the list: a thread that panicked while parking has left its entry.
    pub fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Thread)>> {
        self.parked.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn parked_threads_are_woken() {
        // Far longer than the test takes: no thread wakes up by itself.
        let sleep = Duration::from_secs(60);
        let parking = Parking::new(Duration::ZERO, Duration::ZERO, sleep, &Arc::new(Cores::new(3)));
        let is_ready = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (parking, is_ready) = (&parking, &is_ready);
                scope.spawn(move || parking.wait(thread, || is_ready.load(Ordering::SeqCst)));
            }
            while parking.count.load(Ordering::SeqCst) < 3 {
                yield_now();
            }
            is_ready.store(true, Ordering::SeqCst);
            parking.wake(3);
        });
        assert!(begin.elapsed() < sleep / 2);
        assert_eq!(parking.count.load(Ordering::SeqCst), 0, "the list is empty");
    }
}
