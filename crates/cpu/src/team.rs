//! The resident team of threads: publishes one job at a time, every member runs it, members meet in a
//! barrier. Knows nothing of what a job does.
//!
//! A member that waits spins briefly, then lets other threads run, and sleeps after a millisecond: on a
//! machine with more threads than free cores, who spins keeps the one he waits for from running, and an
//! idle team uses no core. A panic of one member releases the others from their barriers and is raised
//! again in the caller.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{JoinHandle, Thread, current, park_timeout, yield_now};
use std::time::{Duration, Instant};

/// How long a waiter spins before it offers its core to others: as long as calls of few rows differ.
const SPINNING: Duration = Duration::from_micros(300);
/// Turns between two looks at the clock.
const SPINS: u32 = 32;
/// How long a waiter goes on looking before it sleeps: longer than a step's calls and the work between two
/// steps take, too short to be seen as load.
const PATIENCE: Duration = Duration::from_millis(1);
/// Longest sleep before a waiter looks again whether a member has failed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

type Job = *const (dyn Fn(usize) + Sync);

/// Threads that stay; the caller of [`Team::run`] is member 0.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    size: usize,
    job: UnsafeCell<Option<Job>>,
    /// Number of the published job.
    epoch: AtomicUsize,
    /// Workers that have not finished it.
    running: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    bell: Bell,
}

/// Lets threads sleep until something they watch has changed.
struct Bell {
    /// How long a waiter spins.
    spinning: Duration,
    /// Length of the list, changed while it is locked, to be seen without the lock.
    count: AtomicUsize,
    sleepers: Mutex<Vec<Thread>>,
}

impl Bell {
    /// Waits until `ready`: spins, then lets others run, then sleeps. Whoever makes it ready rings
    /// afterwards.
    fn wait(&self, mut ready: impl FnMut() -> bool) {
        let mut begin = None;
        loop {
            for _ in 0..SPINS {
                if ready() {
                    return;
                }
                spin_loop();
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited > PATIENCE {
                break;
            }
            if waited > self.spinning {
                yield_now();
            }
        }
        loop {
            let mut sleepers = self.lock();
            sleepers.push(current());
            // Announced before the last look: a change after it is seen by whoever rings.
            self.count.store(sleepers.len(), Ordering::SeqCst);
            drop(sleepers);
            let is_ready = ready();
            if !is_ready {
                park_timeout(LOOK_AGAIN);
            }
            let mut sleepers = self.lock();
            if let Some(place) = sleepers.iter().position(|thread| thread.id() == current().id()) {
                sleepers.swap_remove(place);
                self.count.store(sleepers.len(), Ordering::SeqCst);
            }
            drop(sleepers);
            if is_ready || ready() {
                return;
            }
        }
    }

    /// Wakes everyone who sleeps; call it after the change they wait for.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = self.lock();
            self.count.store(0, Ordering::SeqCst);
            let sleepers = std::mem::take(&mut *list);
            // Who wakes takes the lock again.
            drop(list);
            sleepers.iter().for_each(Thread::unpark);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.sleepers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

// SAFETY: `job` is written by the caller while no worker runs (`running` is zero) and read by workers
// after they have seen the new epoch; it points to something that lives until all of them are done.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// What a member that waits in a barrier panics with when another has failed.
struct Abandoned;

impl Team {
    /// Starts `size - 1` threads.
    pub fn new(size: usize) -> std::io::Result<Team> {
        // With more members than cores, whoever is waited for may need this one.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spinning = if size > cores { Duration::ZERO } else { SPINNING };
        let shared = Arc::new(Shared {
            size: size.max(1),
            job: UnsafeCell::new(None),
            epoch: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            bell: Bell { spinning, count: AtomicUsize::new(0), sleepers: Mutex::default() },
        });
        let mut team = Team { shared, workers: Vec::new() };
        for member in 1..team.size() {
            let shared = Arc::clone(&team.shared);
            let builder = std::thread::Builder::new().name(format!("mambo-{member}"));
            team.workers.push(builder.spawn(move || work(&shared, member))?);
        }
        Ok(team)
    }

    /// Members, the caller included.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Runs `job(member)` once on every member and returns when all are done.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if shared.size == 1 {
            return job(0);
        }
        // SAFETY: only the lifetime is changed; no worker keeps the pointer beyond this call, which waits
        // for all of them.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: no worker is running, so nobody reads the cell.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.store(shared.size - 1, Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        shared.bell.ring();
        guard(shared, || job(0));
        shared.bell.wait(|| shared.running.load(Ordering::SeqCst) == 0);
        if shared.failed.swap(false, Ordering::Relaxed) {
            shared.arrived.store(0, Ordering::Relaxed);
            let failure = shared.failure.lock().unwrap_or_else(|e| e.into_inner()).take();
            resume_unwind(failure.unwrap_or_else(|| Box::new("a member of the thread team failed")));
        }
    }

    /// A handle for use inside a job.
    pub fn meeting(&self) -> Meeting {
        Meeting { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.bell.ring();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// The barrier of a team, usable while the team itself is borrowed by [`Team::run`].
pub(crate) struct Meeting {
    shared: Arc<Shared>,
}

impl Meeting {
    /// Meets all other members; every member of the running job must call it.
    pub fn barrier(&self) {
        self.shared.barrier();
    }
}

impl Shared {
    fn barrier(&self) {
        if self.size == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.bell.ring();
            return;
        }
        self.bell.wait(|| {
            if self.failed.load(Ordering::Relaxed) {
                std::panic::panic_any(Abandoned);
            }
            self.generation.load(Ordering::SeqCst) != generation
        });
    }
}

/// Runs a member's share and keeps the first panic of the team.
fn guard(shared: &Shared, share: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(share)) {
        let mut failure = shared.failure.lock().unwrap_or_else(|e| e.into_inner());
        if failure.is_none() && !panic.is::<Abandoned>() {
            *failure = Some(panic);
        }
        shared.failed.store(true, Ordering::Relaxed);
    }
}

fn work(shared: &Shared, member: usize) {
    let mut seen = 0;
    loop {
        seen = next_epoch(shared, seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the epoch was published after the job was stored, and `run` keeps it alive until
        // `running` is zero.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: as above.
            guard(shared, || unsafe { (*job)(member) });
        }
        shared.running.fetch_sub(1, Ordering::SeqCst);
        shared.bell.ring();
    }
}

/// Waits for an epoch other than `seen`.
fn next_epoch(shared: &Shared, seen: usize) -> usize {
    let mut epoch = seen;
    shared.bell.wait(|| {
        epoch = shared.epoch.load(Ordering::SeqCst);
        epoch != seen
    });
    epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_meet_and_share_work() {
        let mut team = Team::new(4).unwrap();
        let meeting = team.meeting();
        for _ in 0..200 {
            let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run(&|_| {
                before.fetch_add(1, Ordering::Relaxed);
                meeting.barrier();
                assert_eq!(before.load(Ordering::Relaxed), 4);
                meeting.barrier();
                after.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(after.into_inner(), 4);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let mut team = Team::new(3).unwrap();
        let meeting = team.meeting();
        for culprit in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|member| {
                    assert_ne!(member, culprit, "this member fails");
                    meeting.barrier();
                });
            }));
            let text = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("this member fails"), "{text}");
            let count = AtomicUsize::new(0);
            team.run(&|_| {
                meeting.barrier();
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
    }
}
