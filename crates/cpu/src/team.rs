//! The resident thread team: runs one job at a time on all threads or the first few, with a barrier among them. Knows
//! nothing about what a job does.
//!
//! A waiting thread spins briefly, then yields, and finally parks: with more threads than free cores a spinning thread
//! would keep the one it waits for from running, and an idle team should use no core. Within a job threads park late:
//! where waking is slow, as on a virtual machine with a busy host, a woken thread is late at the next barrier, and if
//! the others parked there as well, every barrier would take that long.
//!
//! If a thread panics, the others are released from their barriers and the panic resumes in the caller.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cores::Cores;
use crate::parking::Parking;

/// How long a waiter spins before it yields: about as much as threads drift apart in calls with few rows.
const YIELD_AFTER: Duration = Duration::from_micros(300);
/// How long a thread waits within a job before it parks: longer than a host usually preempts a core or takes to wake
/// one.
const PARK_AFTER: Duration = Duration::from_millis(20);
/// The same for an idle worker: longer than the work between two steps, too short to show as load.
const IDLE_PARK_AFTER: Duration = Duration::from_millis(1);
/// Longest time parked before a waiter checks again whether a thread has failed.
const RECHECK_FAILURE: Duration = Duration::from_millis(20);
/// The same before an idle worker checks again for a job, the only thing it waits for.
const RECHECK_JOB: Duration = Duration::from_secs(1);

type Job = *const (dyn Fn(usize) + Sync);

/// Resident threads; the caller of [`Team::run`] is thread 0.
pub(crate) struct Team {
    state: Arc<TeamState>,
    workers: Vec<JoinHandle<()>>,
}

struct TeamState {
    size: usize,
    job: UnsafeCell<Option<Job>>,
    /// The published job: its number times [`EPOCH`], plus its thread count. One word, so that the two are always read
    /// together.
    published: AtomicUsize,
    /// Workers that have not finished the job.
    running: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// Where threads of the running job wait.
    in_job: Parking,
    /// Where workers wait for a job.
    idle: Parking,
}

/// Step between job numbers: more than a team can have threads.
const EPOCH: usize = 1 << 16;

// SAFETY: `job` is written by the caller while no worker runs (`running` is zero) and read by workers after they have
// seen the new number; it points to something that lives until all of them are done.
unsafe impl Sync for TeamState {}
// SAFETY: as above.
unsafe impl Send for TeamState {}

/// Panic payload of a thread that waits at a barrier when another has failed.
struct Abandoned;

impl Team {
    /// Starts `size - 1` threads.
    pub fn new(size: usize) -> std::io::Result<Team> {
        // With more threads than cores, the thread waited for may need this core.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let yield_after = if size > cores { Duration::ZERO } else { YIELD_AFTER };
        let seen = Arc::new(Cores::new(size.max(1)));
        let state = Arc::new(TeamState {
            size: size.max(1),
            job: UnsafeCell::new(None),
            published: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            in_job: Parking::new(yield_after, PARK_AFTER, RECHECK_FAILURE, &seen),
            idle: Parking::new(yield_after, IDLE_PARK_AFTER, RECHECK_JOB, &seen),
        });
        assert!(size < EPOCH, "a team of {size} threads");
        let mut team = Team { state, workers: Vec::new() };
        for thread in 1..team.size() {
            let state = Arc::clone(&team.state);
            let builder = std::thread::Builder::new().name(format!("mambo-{thread}"));
            team.workers.push(builder.spawn(move || work(&state, thread))?);
        }
        Ok(team)
    }

    /// Number of threads, including the caller.
    pub fn size(&self) -> usize {
        self.state.size
    }

    /// Runs `job(thread)` on every thread and returns when all are done.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        self.run_some(self.size(), job);
    }

    /// The same on the first `threads` threads only; the others keep waiting.
    pub fn run_some(&mut self, threads: usize, job: &(dyn Fn(usize) + Sync)) {
        let state = &*self.state;
        assert!((1..=state.size).contains(&threads), "{threads} threads of {}", state.size);
        // SAFETY: only the lifetime changes; no worker keeps the pointer beyond this call, which waits for all of them.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: no worker is running, so nothing reads the cell.
        unsafe { *state.job.get() = Some(erased) };
        state.running.store(threads - 1, Ordering::Relaxed);
        state.publish(threads);
        guard(state, || job(0));
        state.in_job.wait(0, || state.running.load(Ordering::SeqCst) == 0);
        if state.failed.swap(false, Ordering::Relaxed) {
            state.arrived.store(0, Ordering::Relaxed);
            state.in_job.clear();
            let failure = state.failure.lock().unwrap_or_else(|e| e.into_inner()).take();
            resume_unwind(failure.unwrap_or_else(|| Box::new("a thread of the team failed")));
        }
    }

    /// A handle to the barrier, for use inside a job.
    pub fn barrier(&self) -> Barrier {
        Barrier { state: Arc::clone(&self.state) }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        self.state.publish(self.state.size);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// The barrier of a team, usable while the team itself is borrowed by [`Team::run`].
pub(crate) struct Barrier {
    state: Arc<TeamState>,
}

impl Barrier {
    /// Waits for all threads of the running job; every one of them must call it.
    pub fn wait(&self, thread: usize) {
        self.state.wait_at_barrier(thread);
    }
}

impl TeamState {
    /// Starts the next job, on this many threads.
    fn publish(&self, threads: usize) {
        let number = self.published.load(Ordering::Relaxed) / EPOCH + 1;
        self.published.store(number.wrapping_mul(EPOCH) + threads, Ordering::SeqCst);
        self.idle.wake(threads);
    }

    fn wait_at_barrier(&self, thread: usize) {
        let threads = self.published.load(Ordering::Relaxed) % EPOCH;
        if threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.in_job.wake(threads);
            return;
        }
        self.in_job.wait(thread, || {
            if self.failed.load(Ordering::SeqCst) {
                std::panic::panic_any(Abandoned);
            }
            self.generation.load(Ordering::SeqCst) != generation
        });
    }
}

/// Runs a thread's share of a job and keeps the team's first panic.
fn guard(state: &TeamState, share: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(share)) {
        let mut failure = state.failure.lock().unwrap_or_else(|e| e.into_inner());
        if failure.is_none() && !panic.is::<Abandoned>() {
            *failure = Some(panic);
        }
        state.failed.store(true, Ordering::SeqCst);
        state.in_job.wake(state.size);
    }
}

fn work(state: &TeamState, thread: usize) {
    let mut seen = 0;
    loop {
        seen = next_job(state, thread, seen);
        if state.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the number was published after the job was stored, and `run_some` keeps it alive until
        // `running` is zero.
        if let Some(job) = unsafe { *state.job.get() } {
            // SAFETY: as above.
            guard(state, || unsafe { (*job)(thread) });
        }
        if state.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            state.in_job.wake(1);
        }
    }
}

/// Waits for a job other than `seen` that includes this thread; returns its number.
fn next_job(state: &TeamState, thread: usize, seen: usize) -> usize {
    let mut number = seen;
    state.idle.wait(thread, || {
        let published = state.published.load(Ordering::SeqCst);
        number = published / EPOCH;
        number != seen && thread < published % EPOCH
    });
    number
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_barrier_waits_for_all_threads() {
        let mut team = Team::new(4).unwrap();
        let barrier = team.barrier();
        for _ in 0..200 {
            let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run(&|thread| {
                before.fetch_add(1, Ordering::Relaxed);
                barrier.wait(thread);
                assert_eq!(before.load(Ordering::Relaxed), 4);
                barrier.wait(thread);
                after.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(after.into_inner(), 4);
        }
    }

    #[test]
    fn a_job_can_run_on_some_of_the_threads() {
        let mut team = Team::new(4).unwrap();
        let barrier = team.barrier();
        for iteration in 0..400 {
            let threads = [1, 3, 4, 2][iteration % 4];
            // Now and then long enough for all threads to park.
            std::thread::sleep(Duration::from_millis(if iteration % 100 == 99 { 5 } else { 0 }));
            let begin = Instant::now();
            let (here, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run_some(threads, &|thread| {
                most.fetch_max(thread, Ordering::Relaxed);
                here.fetch_add(1, Ordering::Relaxed);
                barrier.wait(thread);
                assert_eq!(here.load(Ordering::Relaxed), threads);
            });
            assert_eq!(most.into_inner(), threads - 1);
            // A thread that is not woken would only start after its timeout.
            assert!(begin.elapsed() < RECHECK_JOB, "{threads} threads in iteration {iteration}");
        }
    }

    #[test]
    fn threads_that_park_within_a_job_continue_it() {
        let mut team = Team::new(3).unwrap();
        let barrier = team.barrier();
        for fails in [false, true, false] {
            let begin = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|thread| {
                    if thread == 1 {
                        std::thread::sleep(2 * PARK_AFTER);
                        assert!(!fails, "this thread fails");
                    }
                    barrier.wait(thread);
                });
            }));
            assert_eq!(result.is_err(), fails);
            assert!(begin.elapsed() >= 2 * PARK_AFTER);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_survives() {
        let mut team = Team::new(3).unwrap();
        let barrier = team.barrier();
        for (culprit, threads) in [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run_some(threads, &|thread| {
                    assert_ne!(thread, culprit, "this thread fails");
                    barrier.wait(thread);
                });
            }));
            let text = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("this thread fails"), "{text}");
            let count = AtomicUsize::new(0);
            team.run(&|thread| {
                barrier.wait(thread);
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
    }
}
