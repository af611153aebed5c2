//! Which core each thread of the team was seen on last, so that a waiter knows when the one it waits for needs its core.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

/// A core nobody has been seen on.
const UNKNOWN: usize = usize::MAX;

/// The cores of the team's threads.
#[derive(Debug)]
pub(crate) struct Cores(Box<[AtomicUsize]>);

impl Cores {
    /// Those of so many threads, not seen yet.
    pub fn new(threads: usize) -> Cores {
        Cores((0..threads).map(|_| AtomicUsize::new(UNKNOWN)).collect())
    }

    /// Notes where the calling thread is, and says whether another one was seen there last.
    pub fn is_shared(&self, thread: usize) -> bool {
        let Some(own) = current() else { return false };
        self.note(thread, own)
    }

    fn note(&self, thread: usize, own: usize) -> bool {
        // Others read it all the time, and would lose it from their caches.
        if self.0[thread].load(Ordering::Relaxed) != own {
            self.0[thread].store(own, Ordering::Relaxed);
        }
        let mut others = self.0.iter().enumerate().filter(|(other, _)| *other != thread);
        others.any(|(_, core)| core.load(Ordering::Relaxed) == own)
    }
}

/// The core that the calling thread runs on, where the system tells.
fn current() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: it takes no arguments and touches nothing.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_meet_on_a_core_know() {
        let cores = Cores::new(3);
        assert!(!cores.note(0, 5));
        assert!(!cores.note(1, 4));
        assert!(cores.note(1, 5));
        assert!(cores.note(0, 5));
        assert!(!cores.note(0, 6));
        assert!(!cores.note(1, 5), "nobody is known to be there any more");
    }
}
