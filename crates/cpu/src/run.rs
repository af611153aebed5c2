//! The executor: a program bound to kernels, and the loop in which the team runs its calls.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mambo_kernel::check::StepNeeds;
use mambo_kernel::{BackendError, CallTime, HiddenRows, Program, StepInputs, StepShape};

use crate::barriers::{CallSchedule, schedule};
use crate::cache::Caches;
use crate::clock::Clock;
use crate::kernels::{Cx, Kernel, PHASES, Scratch, ScratchNeed};
use crate::memory::Buffer;
use crate::shared::SharedSlice;
use crate::team::{Barrier, Team};
use crate::thread_count::SerialCosts;

/// A program ready to run.
pub(crate) struct Compiled {
    pub program: Program,
    kernels: Vec<Box<dyn Kernel>>,
    /// Which calls one thread may run.
    may_run_alone: Vec<bool>,
    needs: StepNeeds,
    /// None where all threads run every step.
    costs: Option<SerialCosts>,
    /// Tokens and wanted rows of the step before, and its schedule.
    scheduled_for: (usize, usize),
    schedule: Vec<CallSchedule>,
    barrier_count: usize,
    /// Counters of every call, set to zero before each step.
    counters: Vec<[AtomicUsize; PHASES]>,
    pub times: Vec<CallTime>,
}

impl Compiled {
    /// A checked program with its kernels; `vocabulary` rows are in its smallest table.
    pub fn new(
        program: Program,
        kernels: Vec<Box<dyn Kernel>>,
        may_run_alone: Vec<bool>,
        vocabulary: usize,
        costs: Option<SerialCosts>,
    ) -> Compiled {
        let count = kernels.len();
        Compiled {
            needs: StepNeeds::of(&program, vocabulary),
            counters: kernels.iter().map(|_| Default::default()).collect(),
            times: vec![CallTime::default(); count],
            schedule: Vec::with_capacity(count),
            scheduled_for: (usize::MAX, usize::MAX),
            barrier_count: 0,
            program,
            kernels,
            may_run_alone,
            costs,
        }
    }

    /// Scratch memory the program needs.
    pub fn scratch(&self) -> ScratchNeed {
        let tokens = self.program.max_tokens.max(self.program.max_wanted);
        self.kernels.iter().fold(ScratchNeed::default(), |need, k| need.or(k.scratch(tokens)))
    }
}

/// Scratch memory of the threads.
pub(crate) struct ScratchPool {
    per_thread: PerThread,
    shared: Buffer<f32>,
    size: ScratchNeed,
}

/// Scratch of each thread.
struct PerThread(Vec<UnsafeCell<Scratch>>);

// SAFETY: thread i alone uses entry i while a step runs.
unsafe impl Sync for PerThread {}

impl PerThread {
    fn of(&self, thread: usize) -> *mut Scratch {
        self.0[thread].get()
    }
}

impl ScratchPool {
    pub fn new() -> Result<ScratchPool, BackendError> {
        let shared = Buffer::zeroed(0, "working memory")?;
        Ok(ScratchPool { per_thread: PerThread(Vec::new()), shared, size: ScratchNeed::default() })
    }

    /// Grows every thread's scratch to at least this.
    pub fn grow(&mut self, threads: usize, need: ScratchNeed) -> Result<(), BackendError> {
        let size = self.size.or(need);
        if size == self.size && self.per_thread.0.len() == threads {
            return Ok(());
        }
        let mut per_thread = Vec::with_capacity(threads);
        for _ in 0..threads {
            per_thread.push(UnsafeCell::new(Scratch {
                floats: Buffer::zeroed(size.floats, "working memory")?,
                words: Buffer::zeroed(size.words, "working memory")?,
                bytes: Buffer::zeroed(size.bytes, "working memory")?,
            }));
        }
        self.shared = Buffer::zeroed(size.shared, "working memory")?;
        (self.per_thread, self.size) = (PerThread(per_thread), size);
        Ok(())
    }
}

/// Everything a step runs on.
pub(crate) struct Resources<'a> {
    pub team: &'a mut Team,
    pub barrier: &'a Barrier,
    pub scratch: &'a mut ScratchPool,
    pub arena: &'a mut Buffer<u8>,
    pub caches: &'a mut Caches,
    pub clock: Clock,
    /// Whether every call is timed.
    pub profiling: bool,
    /// Threads of the team to do without.
    pub left_cores: usize,
}

impl Compiled {
    /// Runs one step: every thread goes through the calls in order and waits for the others at barriers.
    pub fn run(&mut self, resources: Resources, step: &StepInputs) {
        let (layout, marks) = resources.caches.layout_and_marks();
        let HiddenRows::Given(hidden) = step.hidden else {
            unreachable!("hidden rows are resolved before a step runs")
        };
        self.needs.check(step, size_of_val(hidden), layout, marks);
        for counter in self.counters.iter().flatten() {
            counter.store(0, Ordering::Relaxed);
        }
        let size = (step.token_ids.len(), step.wanted.len());
        if self.scheduled_for != size {
            schedule(&self.program, &self.may_run_alone, size, &mut self.schedule);
            self.barrier_count = self.schedule.iter().filter(|call| call.needs_barrier).count();
            self.scheduled_for = size;
        }
        let schedule = &self.schedule;
        let all = resources.team.size();
        let mut trials =
            self.costs.as_mut().map(|costs| costs.trials(StepShape::of(step), self.barrier_count, all));
        let wanted = trials.as_ref().map_or(all, |trials| trials.threads());
        let threads = wanted.min(all.saturating_sub(resources.left_cores)).max(1);
        let arena = SharedSlice::new(resources.arena);
        let caches = resources.caches.views();
        let (kernels, counters) = (&self.kernels, &self.counters);
        let ScratchPool { per_thread, shared, .. } = resources.scratch;
        let (per_thread, shared_scratch) = (&*per_thread, SharedSlice::new(shared));
        let clock = resources.clock;
        let times = Times { clock, calls: UnsafeCell::new(&mut self.times) };
        let times = resources.profiling.then_some(&times);
        let barrier = resources.barrier;
        let begin = clock.now();
        resources.team.run_some(threads, &|thread| {
            // SAFETY: only this thread uses this entry.
            let scratch = unsafe { &mut *per_thread.of(thread) };
            for (index, (kernel, counters)) in kernels.iter().zip(counters).enumerate() {
                let CallSchedule { needs_barrier, is_single_threaded } = schedule[index];
                let begin = times.filter(|_| thread == 0).map(|_| clock.now());
                if needs_barrier {
                    barrier.wait(thread);
                }
                let threads = if is_single_threaded { 1 } else { threads };
                if thread < threads {
                    let cx = Cx {
                        thread,
                        threads,
                        step,
                        caches: &caches,
                        arena,
                        shared_scratch,
                        barrier,
                        counters,
                    };
                    kernel.run(&cx, scratch);
                }
                if let (Some(begin), Some(times)) = (begin, times) {
                    times.add(index, begin);
                }
            }
        });
        if let Some(trials) = trials.as_mut().filter(|_| threads == wanted) {
            trials.note(clock.since(begin));
        }
    }
}

/// Call times, written by thread 0 alone.
struct Times<'a> {
    clock: Clock,
    calls: UnsafeCell<&'a mut Vec<CallTime>>,
}

// SAFETY: `add` is called by thread 0 only.
unsafe impl Sync for Times<'_> {}

impl Times<'_> {
    fn add(&self, index: usize, begin: Duration) {
        // SAFETY: only thread 0 comes here, and keeps no reference.
        let times: &mut Vec<CallTime> = unsafe { &mut *self.calls.get() };
        let time = &mut times[index];
        time.total += self.clock.since(begin);
        time.runs += 1;
    }
}
