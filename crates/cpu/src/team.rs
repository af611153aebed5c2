//! The resident team of threads: publishes one job at a time, all members or the first few run it and meet in
//! a barrier. Knows nothing of what a job does.
//!
//! A member that waits spins briefly, then lets other threads run, and sleeps at last: on a machine with more
//! threads than free cores, who spins keeps the one he waits for from running, and an idle team uses no core.
//! Within a job it sleeps late: where waking takes long, as on a virtual machine whose host is busy, who was woken
//! comes late to the next meeting, and if the others slept there too, every meeting would take that long.
//!
//! A panic of one member releases the others from their barriers and is raised again in the caller.
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
/// How long a member of a job goes on looking before it sleeps: longer than hosts keep a core away, or take to
/// wake one, as a rule.
const PATIENCE: Duration = Duration::from_millis(20);
/// The same for a worker without a job: longer than the work between two steps takes, too short to be seen as load.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);
/// Longest sleep before a waiter looks again whether a member has failed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same before a worker looks again for a job; nothing but the next one matters to it.
const LOOK_FOR_JOB: Duration = Duration::from_secs(1);

type Job = *const (dyn Fn(usize) + Sync);

/// Threads that stay; the caller of [`Team::run`] is member 0.
pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    size: usize,
    job: UnsafeCell<Option<Job>>,
    /// The published job: its number times [`EPOCH`], plus how many members it has. One word, so that nobody sees
    /// the number of one job with the members of another.
    published: AtomicUsize,
    /// Workers that have not finished it.
    running: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    failure: Mutex<Option<Box<dyn Any + Send>>>,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// For members of the running job.
    bell: Bell,
    /// For workers that wait for a job.
    door: Bell,
}

/// Distance of two jobs' numbers: more than a team can have members.
const EPOCH: usize = 1 << 16;

/// Lets threads sleep until something they watch has changed.
struct Bell {
    /// How long a waiter spins.
    spinning: Duration,
    /// How long it looks before it sleeps.
    patience: Duration,
    /// Longest sleep before it looks by itself.
    sleep: Duration,
    /// Length of the list, changed while it is locked, to be seen without the lock.
    count: AtomicUsize,
    /// Members who sleep.
    sleepers: Mutex<Vec<(usize, Thread)>>,
}

impl Bell {
    fn new(spinning: Duration, patience: Duration, sleep: Duration) -> Bell {
        Bell { spinning, patience, sleep, count: AtomicUsize::new(0), sleepers: Mutex::default() }
    }

    /// Waits until `ready`: spins, then lets others run, then sleeps. Whoever makes it ready rings
    /// afterwards.
    fn wait(&self, member: usize, mut ready: impl FnMut() -> bool) {
        let mut begin = None;
        loop {
            for _ in 0..SPINS {
                if ready() {
                    return;
                }
                spin_loop();
            }
            let waited = begin.get_or_insert_with(Instant::now).elapsed();
            if waited > self.patience {
                break;
            }
            if waited > self.spinning {
                yield_now();
            }
        }
        loop {
            let mut sleepers = self.lock();
            sleepers.push((member, current()));
            // Announced before the last look: a change after it is seen by whoever rings.
            self.count.store(sleepers.len(), Ordering::SeqCst);
            drop(sleepers);
            let is_ready = ready();
            if !is_ready {
                park_timeout(self.sleep);
            }
            let mut sleepers = self.lock();
            if let Some(place) = sleepers.iter().position(|(other, _)| *other == member) {
                sleepers.swap_remove(place);
                self.count.store(sleepers.len(), Ordering::SeqCst);
            }
            drop(sleepers);
            if is_ready || ready() {
                return;
            }
        }
    }

    /// Wakes those of the first `members` who sleep; call it after the change they wait for.
    fn ring(&self, members: usize) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            let mut list = self.lock();
            let woken: Vec<_> = list.extract_if(.., |(member, _)| *member < members).collect();
            self.count.store(list.len(), Ordering::SeqCst);
            // Who wakes takes the lock again.
            drop(list);
            woken.iter().for_each(|(_, thread)| thread.unpark());
        }
    }

    /// Empties the list: who failed while he went to sleep has left his name.
    fn forget(&self) {
        self.lock().clear();
        self.count.store(0, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Thread)>> {
        self.sleepers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

// SAFETY: `job` is written by the caller while no worker runs (`running` is zero) and read by workers
// after they have seen the new number; it points to something that lives until all of them are done.
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
            published: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            bell: Bell::new(spinning, PATIENCE, LOOK_AGAIN),
            door: Bell::new(spinning, IDLE_PATIENCE, LOOK_FOR_JOB),
        });
        assert!(size < EPOCH, "a team of {size}");
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
        self.run_some(self.size(), job);
    }

    /// The same with the first few members alone; the others sleep on.
    pub fn run_some(&mut self, members: usize, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        assert!((1..=shared.size).contains(&members), "{members} members of {}", shared.size);
        // SAFETY: only the lifetime is changed; no worker keeps the pointer beyond this call, which waits
        // for all of them.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: no worker is running, so nobody reads the cell.
        unsafe { *shared.job.get() = Some(erased) };
        shared.running.store(members - 1, Ordering::Relaxed);
        shared.publish(members);
        guard(shared, || job(0));
        shared.bell.wait(0, || shared.running.load(Ordering::SeqCst) == 0);
        if shared.failed.swap(false, Ordering::Relaxed) {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.bell.forget();
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
        self.shared.publish(self.shared.size);
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
    pub fn barrier(&self, member: usize) {
        self.shared.barrier(member);
    }
}

impl Shared {
    /// Starts the next job of so many members.
    fn publish(&self, members: usize) {
        let number = self.published.load(Ordering::Relaxed) / EPOCH + 1;
        self.published.store(number.wrapping_mul(EPOCH) + members, Ordering::SeqCst);
        self.door.ring(members);
    }

    fn barrier(&self, member: usize) {
        let members = self.published.load(Ordering::Relaxed) % EPOCH;
        if members == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == members {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.bell.ring(members);
            return;
        }
        self.bell.wait(member, || {
            if self.failed.load(Ordering::SeqCst) {
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
        shared.failed.store(true, Ordering::SeqCst);
        shared.bell.ring(shared.size);
    }
}

fn work(shared: &Shared, member: usize) {
    let mut seen = 0;
    loop {
        seen = next_job(shared, member, seen);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the number was published after the job was stored, and `run_some` keeps it alive until
        // `running` is zero.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: as above.
            guard(shared, || unsafe { (*job)(member) });
        }
        if shared.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            shared.bell.ring(1);
        }
    }
}

/// Waits for a job other than `seen` that has this member; returns its number.
fn next_job(shared: &Shared, member: usize, seen: usize) -> usize {
    let mut number = seen;
    shared.door.wait(member, || {
        let published = shared.published.load(Ordering::SeqCst);
        number = published / EPOCH;
        number != seen && member < published % EPOCH
    });
    number
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
            team.run(&|member| {
                before.fetch_add(1, Ordering::Relaxed);
                meeting.barrier(member);
                assert_eq!(before.load(Ordering::Relaxed), 4);
                meeting.barrier(member);
                after.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(after.into_inner(), 4);
        }
    }

    #[test]
    fn some_work_while_the_others_sleep_on() {
        let mut team = Team::new(4).unwrap();
        let meeting = team.meeting();
        for round in 0..400 {
            let members = [1, 3, 4, 2][round % 4];
            // Long enough now and then that everyone has gone to sleep.
            std::thread::sleep(Duration::from_millis(if round % 100 == 99 { 5 } else { 0 }));
            let begin = Instant::now();
            let (here, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run_some(members, &|member| {
                most.fetch_max(member, Ordering::Relaxed);
                here.fetch_add(1, Ordering::Relaxed);
                meeting.barrier(member);
                assert_eq!(here.load(Ordering::Relaxed), members);
            });
            assert_eq!(most.into_inner(), members - 1);
            // Who was not woken looks by himself, but late.
            assert!(begin.elapsed() < LOOK_FOR_JOB, "{members} members in round {round}");
        }
    }

    #[test]
    fn who_sleeps_is_woken_by_the_bell() {
        // Nobody looks by himself for as long as this takes.
        let sleep = Duration::from_secs(60);
        let bell = Bell::new(Duration::ZERO, Duration::ZERO, sleep);
        let is_ready = AtomicBool::new(false);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for member in 0..3 {
                let (bell, is_ready) = (&bell, &is_ready);
                scope.spawn(move || bell.wait(member, || is_ready.load(Ordering::SeqCst)));
            }
            while bell.count.load(Ordering::SeqCst) < 3 {
                yield_now();
            }
            is_ready.store(true, Ordering::SeqCst);
            bell.ring(3);
        });
        assert!(begin.elapsed() < sleep / 2);
        assert_eq!(bell.count.load(Ordering::SeqCst), 0, "nobody is left in the list");
    }

    #[test]
    fn who_sleeps_within_a_job_goes_on_with_it() {
        let mut team = Team::new(3).unwrap();
        let meeting = team.meeting();
        for fails in [false, true, false] {
            let begin = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|member| {
                    if member == 1 {
                        std::thread::sleep(2 * PATIENCE);
                        assert!(!fails, "this member fails");
                    }
                    meeting.barrier(member);
                });
            }));
            assert_eq!(result.is_err(), fails);
            assert!(begin.elapsed() >= 2 * PATIENCE);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let mut team = Team::new(3).unwrap();
        let meeting = team.meeting();
        for (culprit, members) in [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1)] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run_some(members, &|member| {
                    assert_ne!(member, culprit, "this member fails");
                    meeting.barrier(member);
                });
            }));
            let text = *result.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("this member fails"), "{text}");
            let count = AtomicUsize::new(0);
            team.run(&|member| {
                meeting.barrier(member);
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
    }
}
