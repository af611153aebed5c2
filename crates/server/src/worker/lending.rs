//! Cores that the engine leaves to long work on text.
//!
//! Where the engine's threads fill all cores, such work takes one of them from a thread that the others wait for, and
//! the system gives it back when it pleases: after some milliseconds, in which a small model says ten tokens. So long
//! work is announced, and where steps are shorter than that the engine does without a thread until it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long work waits for a core; steps that take longer lose little by it.
const PATIENCE: Duration = Duration::from_millis(5);
/// What a thread without work takes to leave its core.
const PARKING: Duration = Duration::from_millis(1);

/// What is wanted and what was left.
#[derive(Debug)]
pub(crate) struct Lending {
    wanted: AtomicUsize,
    left: watch::Sender<usize>,
}

impl Default for Lending {
    fn default() -> Lending {
        Lending { wanted: AtomicUsize::new(0), left: watch::Sender::new(0) }
    }
}

/// A core's worth of work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Borrowed(Arc<Lending>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lending {
    /// Announces long work, and waits a moment for a core if the engine is at work.
    pub async fn borrow_core(self: &Arc<Lending>, is_busy: bool) -> Borrowed {
        let mut left = self.left.subscribe();
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let borrowed = Borrowed(Arc::clone(self));
        if is_busy && timeout(PATIENCE, left.wait_for(|left| *left > 0)).await.is_ok() {
            sleep(PARKING).await;
        }
        borrowed
    }

    /// Cores that are wanted.
    pub fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Tells those who wait what was left.
    pub fn leave(&self, cores: usize) {
        self.left.send_replace(cores);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn work_waits_for_a_core_and_gives_it_back() {
        let lending = Arc::<Lending>::default();
        let engine = Arc::clone(&lending);
        let step = std::thread::spawn(move || {
            while engine.wanted() == 0 {
                std::thread::yield_now();
            }
            engine.leave(1);
        });
        let borrowed = lending.borrow_core(true).await;
        assert_eq!(*lending.left.borrow(), 1, "the core was not left when work began");
        drop(borrowed);
        assert_eq!(lending.wanted(), 0);
        step.join().unwrap();
    }

    #[tokio::test]
    async fn work_does_not_wait_where_no_core_will_come() {
        let lending = Arc::<Lending>::default();
        let begin = Instant::now();
        let idle = lending.borrow_core(false).await;
        assert_eq!(lending.wanted(), 1);
        // Steps that take long answer nobody; the time is generous for a machine that does other things.
        drop(lending.borrow_core(true).await);
        assert!(begin.elapsed() < 100 * PATIENCE);
        drop(idle);
        assert_eq!(lending.wanted(), 0);
    }
}
