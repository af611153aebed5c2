//! The executor: a program bound to kernels, and the walk of the team through its calls.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mambo_kernel::{BackendError, CallTime, Operand, Program, StepInputs};

use crate::cache::Caches;
use crate::check::StepNeeds;
use crate::kernels::{Cx, Kernel, PHASES, Scratch, ScratchNeed};
use crate::memory::Buffer;
use crate::order::{Order, Turn};
use crate::shared::Shared;
use crate::spread::Efforts;
use crate::team::{Meeting, Team};

/// A program ready to run.
pub(crate) struct Compiled {
    pub program: Program,
    /// None where the call before does it too.
    pub kernels: Vec<Option<Box<dyn Kernel>>>,
    needs: StepNeeds,
    order: Order,
    /// None where all members take part in every step.
    efforts: Option<Efforts>,
    /// The running step's.
    turns: Vec<Turn>,
    /// Counters of every call, set to zero before each step.
    counters: Vec<[AtomicUsize; PHASES]>,
    pub times: Vec<CallTime>,
}

impl Compiled {
    /// A checked program with its kernels; `vocabulary` rows are in its smallest table.
    pub fn new(
        program: Program,
        kernels: Vec<Option<Box<dyn Kernel>>>,
        roundings: &[Option<Operand>],
        vocabulary: usize,
        efforts: Option<Efforts>,
    ) -> Compiled {
        let needs = StepNeeds::of(&program, vocabulary);
        let counters = kernels.iter().map(|_| Default::default()).collect();
        let times = vec![CallTime::default(); kernels.len()];
        let order = Order::of(&program, roundings);
        let turns = Vec::with_capacity(kernels.len());
        Compiled { program, kernels, needs, order, efforts, turns, counters, times }
    }

    /// Working memory the program needs per member.
    pub fn scratch(&self) -> ScratchNeed {
        let tokens = self.program.max_tokens.max(self.program.max_wanted);
        self.kernels.iter().flatten().fold(ScratchNeed::default(), |need, k| need.or(k.scratch(tokens)))
    }
}

/// The members' working memory.
pub(crate) struct Bench {
    members: Places,
    common: Buffer<f32>,
    size: ScratchNeed,
}

/// A place for each member.
struct Places(Vec<UnsafeCell<Scratch>>);

// SAFETY: member i alone uses entry i while a step runs.
unsafe impl Sync for Places {}

impl Places {
    fn of(&self, member: usize) -> *mut Scratch {
        self.0[member].get()
    }
}

impl Bench {
    pub fn new() -> Result<Bench, BackendError> {
        let common = Buffer::zeroed(0, "working memory")?;
        Ok(Bench { members: Places(Vec::new()), common, size: ScratchNeed::default() })
    }

    /// Grows every member's memory to at least this.
    pub fn grow(&mut self, members: usize, need: ScratchNeed) -> Result<(), BackendError> {
        let size = self.size.or(need);
        if size == self.size && self.members.0.len() == members {
            return Ok(());
        }
        let mut places = Vec::with_capacity(members);
        for _ in 0..members {
            places.push(UnsafeCell::new(Scratch {
                floats: Buffer::zeroed(size.floats, "working memory")?,
                words: Buffer::zeroed(size.words, "working memory")?,
                bytes: Buffer::zeroed(size.bytes, "working memory")?,
            }));
        }
        self.common = Buffer::zeroed(size.common, "working memory")?;
        (self.members, self.size) = (Places(places), size);
        Ok(())
    }
}

/// Everything a step runs on.
pub(crate) struct Stage<'a> {
    pub team: &'a mut Team,
    pub meeting: &'a Meeting,
    pub bench: &'a mut Bench,
    pub arena: &'a mut Buffer<u8>,
    pub caches: &'a mut Caches,
    pub profiling: bool,
}

impl Compiled {
    /// Runs one step: every member walks the calls in order and meets the others where it must.
    pub fn run(&mut self, stage: Stage, step: &StepInputs) {
        let (layout, marks) = stage.caches.layout_and_marks();
        self.needs.check(step, layout, marks);
        for counter in self.counters.iter().flatten() {
            counter.store(0, Ordering::Relaxed);
        }
        let (tokens, wanted) = (step.token_ids.len(), step.wanted.len());
        self.order.take_turns(&self.program, tokens, wanted, &mut self.turns);
        let turns = &self.turns;
        let meetings = turns.iter().filter(|turn| turn.meets).count();
        let members = match &self.efforts {
            Some(efforts) => efforts.members(step, meetings, stage.team.size()),
            None => stage.team.size(),
        };
        let arena = Shared::new(stage.arena);
        let caches = stage.caches.views();
        let (kernels, counters) = (&self.kernels, &self.counters);
        let Bench { members: places, common, .. } = stage.bench;
        let (places, common) = (&*places, Shared::new(common));
        let times = Times(UnsafeCell::new(&mut self.times));
        let times = stage.profiling.then_some(&times);
        let meeting = stage.meeting;
        stage.team.run_some(members, &|member| {
            // SAFETY: only this member uses this entry.
            let scratch = unsafe { &mut *places.of(member) };
            for (index, (kernel, counters)) in kernels.iter().zip(counters).enumerate() {
                let Some(kernel) = kernel else { continue };
                let turn = turns[index];
                let begin = (member == 0 && times.is_some()).then(Instant::now);
                if turn.meets {
                    meeting.barrier(member);
                }
                let members = if turn.is_alone { 1 } else { members };
                if member < members {
                    let cx = Cx { member, members, step, caches: &caches, arena, common, meeting, counters };
                    kernel.run(&cx, scratch);
                }
                if let (Some(begin), Some(times)) = (begin, times) {
                    times.add(index, begin);
                }
            }
        });
    }
}

/// Call times, written by member 0 alone.
struct Times<'a>(UnsafeCell<&'a mut Vec<CallTime>>);

// SAFETY: `add` is called by member 0 only.
unsafe impl Sync for Times<'_> {}

impl Times<'_> {
    fn add(&self, index: usize, begin: Instant) {
        // SAFETY: only member 0 comes here, and keeps no reference.
        let times: &mut Vec<CallTime> = unsafe { &mut *self.0.get() };
        let time = &mut times[index];
        time.total += begin.elapsed();
        time.runs += 1;
    }
}
