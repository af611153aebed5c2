//! The resident team of threads: publishes one job at a time, all threads or the first few run it and meet in
//! a barrier. Knows nothing of what a job does.
//!
//! A thread that waits spins briefly, then lets other threads run, and sleeps at last: on a machine with more
//! threads than free cores, who spins keeps the one he waits for from running, and an idle team uses no core.
//! Within a job it sleeps late: where waking takes long, as on a virtual machine whose host is busy, who was woken
//! comes late to the next barrier, and if the others slept there too, every barrier would take that long.
//!
//! A panic of one thread releases the others from their barriers and is raised again in the caller.
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
const YIELD_AFTER: Duration = Duration::from_micros(300);
/// Turns between two looks at the clock.
const SPINS_PER_CHECK: u32 = 32;
/// How long a thread of a job goes on looking before it sleeps: longer than hosts keep a core away, or take to
/// wake one, as a rule.
const PARK_AFTER: Duration = Duration::from_millis(20);
/// The same for a worker without a job: longer than the work between two steps takes, too short to be seen as load.
const IDLE_PARK_AFTER: Duration = Duration::from_millis(1);
/// Longest sleep before a waiter looks again whether a thread has failed.
const RECHECK_FAILURE: Duration = Duration::from_millis(20);
/// The same before a worker looks again for a job; nothing but the next one matters to it.
const RECHECK_JOB: Duration = Duration::from_secs(1);

type Job = *const (dyn Fn(usize) + Sync);

/// Threads that stay; the caller of [`Team::run`] is thread 0.
pub(crate) struct Team {
    state: Arc<TeamState>,
    workers: Vec<JoinHandle<()>>,
}

struct TeamState {
    size: usize,
    job: UnsafeCell<Option<Job>>,
    /// The published job: its number times [`EPOCH`], plus how many threads it has. One word, so that nobody sees
    /// the number of one job with the threads of another.
    published: AtomicUsize,
    /// Workers that have not finished it.
    running: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// For threads of the running job.
    in_job: Parking,
    /// For workers that wait for a job.
    idle: Parking,
}

/// Distance of two jobs' numbers: more than a team can have threads.
const EPOCH: usize = 1 << 16;

/// Lets threads sleep until something they watch has changed.
struct Parking {
    /// How long a waiter spins.
    yield_after: Duration,
    /// How long it looks before it sleeps.
    park_after: Duration,
    /// Longest sleep before it looks by itself.
    recheck: Duration,
    /// Length of the list, changed while it is locked, to be seen without the lock.
    count: AtomicUsize,
    /// Threads who sleep.
    parked: Mutex<Vec<(usize, Thread)>>,
}

impl Parking {
    fn new(yield_after: Duration, park_after: Duration, recheck: Duration) -> Parking {
        Parking { yield_after, park_after, recheck, count: AtomicUsize::new(0), parked: Mutex::default() }
    }

    /// Waits until `ready`: spins, then lets others run, then sleeps. Whoever makes it ready rings
    /// afterwards.
    fn wait(&self, thread: usize, mut ready: impl FnMut() -> bool) {
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
            if waited > self.yield_after {
                yield_now();
            }
        }
        loop {
            let mut parked = self.lock();
            parked.push((thread, current()));
            // Announced before the last look: a change after it is seen by whoever rings.
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

    /// Wakes those of the first `threads` who sleep; call it after the change they wait for.
    fn wake(&self, threads: usize) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = self.lock();
            let woken: Vec<_> = list.extract_if(.., |(thread, _)| *thread < threads).collect();
            self.count.store(list.len(), Ordering::SeqCst);
            // Who wakes takes the lock again.
            drop(list);
            woken.iter().for_each(|(_, thread)| thread.unpark());
        }
    }

    /// Empties the list: who failed while he went to sleep has left his name.
    fn clear(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Thread)>> {
        self.parked.lock().unwrap_or_else(|e| e.into_inner())
    }
}

// SAFETY: `job` is written by the caller while no worker runs (`running` is zero) and read by workers
// after they have seen the new number; it points to something that lives until all of them are done.
unsafe impl Sync for TeamState {}
// SAFETY: as above.
unsafe impl Send for TeamState {}

/// What a thread that waits in a barrier panics with when another has failed.
struct Abandoned;

impl Team {
    /// Starts `size - 1` threads.
    pub fn new(size: usize) -> std::io::Result<Team> {
        // With more threads than cores, whoever is waited for may need this one.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let yield_after = if size > cores { Duration::ZERO } else { YIELD_AFTER };
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
            in_job: Parking::new(yield_after, PARK_AFTER, RECHECK_FAILURE),
            idle: Parking::new(yield_after, IDLE_PARK_AFTER, RECHECK_JOB),
        });
        assert!(size < EPOCH, "a team of {size}");
        let mut team = Team { state, workers: Vec::new() };
        for thread in 1..team.size() {
            let state = Arc::clone(&team.state);
            let builder = std::thread::Builder::new().name(format!("mambo-{thread}"));
            team.workers.push(builder.spawn(move || work(&state, thread))?);
        }
        Ok(team)
    }

    /// Threads, the caller included.
    pub fn size(&self) -> usize {
        self.state.size
    }

    /// Runs `job(thread)` once on every thread and returns when all are done.
    pub fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        self.run_some(self.size(), job);
    }

    /// The same with the first few threads alone; the others sleep on.
    pub fn run_some(&mut self, threads: usize, job: &(dyn Fn(usize) + Sync)) {
        let state = &*self.state;
        assert!((1..=state.size).contains(&threads), "{threads} threads of {}", state.size);
        // SAFETY: only the lifetime is changed; no worker keeps the pointer beyond this call, which waits
        // for all of them.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: no worker is running, so nobody reads the cell.
        unsafe { *state.job.get() = Some(erased) };
        state.running.store(threads - 1, Ordering::Relaxed);
        state.publish(threads);
        guard(state, || job(0));
        state.in_job.wait(0, || state.running.load(Ordering::SeqCst) == 0);
        if state.failed.swap(false, Ordering::Relaxed) {
            state.arrived.store(0, Ordering::Relaxed);
            state.in_job.clear();
            let failure = state.failure.lock().unwrap_or_else(|e| e.into_inner()).take();
            resume_unwind(failure.unwrap_or_else(|| Box::new("a thread of the thread team failed")));
        }
    }

    /// A handle for use inside a job.
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
    /// Meets all other threads; every thread of the running job must call it.
    pub fn wait(&self, thread: usize) {
        self.state.wait_at_barrier(thread);
    }
}

impl TeamState {
    /// Starts the next job of so many threads.
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

/// Runs a thread's share and keeps the first panic of the team.
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

/// Waits for a job other than `seen` that has this thread; returns its number.
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
    use super::*;

    #[test]
    fn threads_meet_and_share_work() {
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
    fn some_work_while_the_others_sleep_on() {
        let mut team = Team::new(4).unwrap();
        let barrier = team.barrier();
        for iteration in 0..400 {
            let threads = [1, 3, 4, 2][iteration % 4];
            // Long enough now and then that everyone has gone to sleep.
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
            // Who was not woken looks by himself, but late.
            assert!(begin.elapsed() < RECHECK_JOB, "{threads} threads in iteration {iteration}");
        }
    }

    #[test]
    fn who_sleeps_is_woken_by_the_bell() {
        // Nobody looks by himself for as long as this takes.
        let sleep = Duration::from_secs(60);
        let in_job = Parking::new(Duration::ZERO, Duration::ZERO, sleep);
        let is_ready = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (in_job, is_ready) = (&in_job, &is_ready);
                scope.spawn(move || in_job.wait(thread, || is_ready.load(Ordering::SeqCst)));
            }
            while in_job.count.load(Ordering::SeqCst) < 3 {
                yield_now();
            }
            is_ready.store(true, Ordering::SeqCst);
            in_job.wake(3);
        });
        assert!(begin.elapsed() < sleep / 2);
        assert_eq!(in_job.count.load(Ordering::SeqCst), 0, "nobody is left in the list");
    }

    #[test]
    fn who_sleeps_within_a_job_goes_on_with_it() {
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
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
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
