//! What a kernel is: work bound to a call's operands and weights, generic over the instruction set.
//!
//! A kernel's body is `#[inline(always)]` down to the last loop, so that all of it ends up in the one function per
//! instruction set in `isa.rs`. Work items are handed out by a counter, one by one or in runs, or divided evenly where
//! all take equally long; which thread runs an item never changes the result.

mod attention;
mod attention_block;
mod attention_split;
mod choose;
mod copy;
pub(crate) mod declaration;
mod delta_head;
mod delta_scan;
mod each_row;
pub(crate) mod embed;
mod gated_group_norm;
mod glu;
mod head_norm;
mod kv_page;
mod layer_norm;
pub(crate) mod matmul;
mod moe_combine;
mod moe_matmul;
mod moe_route;
mod pointwise;
mod quantize;
mod rms_norm;
mod rope;
mod short_conv;
mod ssm_conv;
mod ssm_dt;
mod ssm_head;
mod ssm_scan;
mod ssm_step;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_kernel::{HiddenRows, Operand, Place, StepInputs};

use self::declaration::Declaration;
use crate::cache::CacheViews;
use crate::isa::{Isa, Vectorized};
use crate::memory::Buffer;
use crate::shared::{SharedSlice, View};
use crate::simd::Simd;
use crate::team::Barrier;

/// What a thread needs to run a call.
pub(crate) struct Cx<'a> {
    /// Index of this thread.
    pub thread: usize,
    /// Number of threads that run the call.
    pub threads: usize,
    /// The step's arrays.
    pub step: &'a StepInputs<'a>,
    /// KV pages and recurrent slots.
    pub caches: &'a CacheViews<'a>,
    /// Activations.
    pub arena: SharedSlice<'a, u8>,
    /// Scratch memory that threads share within a call. A call that writes it has a barrier of its own before.
    pub shared_scratch: SharedSlice<'a, f32>,
    /// The team's barrier.
    pub barrier: &'a Barrier,
    /// Counters of the running call, one per phase.
    pub counters: &'a [AtomicUsize; PHASES],
}

/// Phases of a call that have their own counter.
pub(crate) const PHASES: usize = 2;

impl<'a> Cx<'a> {
    /// The rows of an operand in this step.
    pub fn view(&self, operand: &Operand) -> View<'a> {
        let rows = operand.rows.count(self.step.token_ids.len(), self.step.wanted.len());
        match operand.place {
            Place::Arena(offset) => View::arena(&self.arena, offset, operand, rows),
            Place::TokenIds => View::indices(self.step.token_ids),
            Place::Wanted => View::indices(self.step.wanted),
            Place::Hidden(offset) => match self.step.hidden {
                HiddenRows::Given(hidden) => View::given(hidden, offset, operand, rows),
                _ => unreachable!("hidden rows are resolved before a step runs"),
            },
        }
    }

    /// Hands out items `0..count` of a phase, each to one thread.
    #[inline(always)]
    pub fn next(&self, phase: usize, count: usize) -> Option<usize> {
        let item = self.counters[phase].fetch_add(1, Ordering::Relaxed);
        (item < count).then_some(item)
    }

    /// Hands out items `0..count` of a phase in runs of consecutive items, each run to one thread.
    #[inline(always)]
    pub fn next_run(&self, phase: usize, count: usize) -> Option<Range<usize>> {
        self.next_run_of_pass(phase, 0, count)
    }

    /// The same in a later pass of a phase, before which [`Cx::runs_taken`] said `taken`.
    #[inline(always)]
    pub fn next_run_of_pass(&self, phase: usize, taken: usize, count: usize) -> Option<Range<usize>> {
        run(self.counters[phase].fetch_add(1, Ordering::Relaxed) - taken, count, self.threads)
    }

    /// Runs taken so far in a phase; call it between two barriers, while no thread takes one.
    #[inline(always)]
    pub fn runs_taken(&self, phase: usize) -> usize {
        self.counters[phase].load(Ordering::Relaxed)
    }

    /// This thread's share of items `0..count` that all take equally long: no counter is needed.
    #[inline(always)]
    pub fn own(&self, count: usize) -> Range<usize> {
        count * self.thread / self.threads..count * (self.thread + 1) / self.threads
    }

    /// Counts a finished part of an item in the phase's counter and returns whether it was the last of its `parts`, in
    /// which case this thread sees what the others wrote. There are `items` items of at most [`most_parts`] parts.
    #[inline(always)]
    pub fn is_last_part(&self, phase: usize, (item, items): (usize, usize), parts: usize) -> bool {
        is_last_part(&self.counters[phase], (item, items), parts)
    }

    /// Waits for all threads.
    pub fn barrier(&self) {
        self.barrier.wait(self.thread);
    }
}

/// Bits of a counter for each of `items` items.
#[inline(always)]
fn part_bits(items: usize) -> usize {
    (usize::BITS as usize / items.max(1)).min(8)
}

/// Parts of each of `items` items that one counter can count; 0 if it has too few bits.
#[inline(always)]
pub(crate) fn most_parts(items: usize) -> usize {
    (1 << part_bits(items)) - 1
}

#[inline(always)]
fn is_last_part(counter: &AtomicUsize, (item, items): (usize, usize), parts: usize) -> bool {
    let (shift, most) = (item * part_bits(items), most_parts(items));
    assert!(item < items && parts <= most, "item {item} of {items}, {parts} parts");
    let before = counter.fetch_add(1 << shift, Ordering::AcqRel);
    (before >> shift & most) + 1 == parts
}

/// Run number `index` of items `0..count`. Long runs stream memory well, short ones let threads finish together: each
/// thread gets a run of half an even share of what is left, and so on until nothing is.
#[inline(always)]
fn run(mut index: usize, count: usize, threads: usize) -> Option<Range<usize>> {
    let mut first = 0;
    loop {
        let length = ((count - first) / (2 * threads)).max(1);
        if index < threads || length == 1 {
            let start = first.saturating_add(index.saturating_mul(length));
            return (start < count).then(|| start..start + length);
        }
        first += threads * length;
        index -= threads;
    }
}

/// Scratch memory of one thread, sized when programs are compiled.
pub(crate) struct Scratch {
    /// Floats.
    pub floats: Buffer<f32>,
    /// Integers.
    pub words: Buffer<i32>,
    /// Bytes.
    pub bytes: Buffer<u8>,
}

/// Scratch memory a kernel needs, per thread and shared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ScratchNeed {
    /// Floats.
    pub floats: usize,
    /// Integers.
    pub words: usize,
    /// Bytes.
    pub bytes: usize,
    /// Floats that threads share.
    pub shared: usize,
}

impl ScratchNeed {
    /// Enough for either of two.
    pub fn or(self, other: ScratchNeed) -> ScratchNeed {
        ScratchNeed {
            floats: self.floats.max(other.floats),
            words: self.words.max(other.words),
            bytes: self.bytes.max(other.bytes),
            shared: self.shared.max(other.shared),
        }
    }
}

/// A kernel's body. Implementations are `#[inline(always)]`.
pub(crate) trait Work: Send + Sync + 'static {
    /// Runs items until there are none left.
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch);

    /// Scratch memory for steps of up to this many tokens.
    fn scratch(&self, _max_tokens: usize) -> ScratchNeed {
        ScratchNeed::default()
    }
}

/// A call ready to run.
pub(crate) trait Kernel: Send + Sync {
    /// Runs this thread's share.
    fn run(&self, cx: &Cx, scratch: &mut Scratch);
    /// Scratch memory for steps of up to this many tokens.
    fn scratch(&self, max_tokens: usize) -> ScratchNeed;
}

struct Bound<W> {
    isa: Isa,
    work: W,
}

/// A thread's share of a call.
struct Share<'a, W> {
    work: &'a W,
    cx: &'a Cx<'a>,
    scratch: &'a mut Scratch,
}

impl<W: Work> Vectorized for Share<'_, W> {
    type Output = ();
    type Home = W;

    #[inline(always)]
    fn run<S: Simd>(self) {
        self.work.work::<S>(self.cx, self.scratch);
    }
}

impl<W: Work> Kernel for Bound<W> {
    fn run(&self, cx: &Cx, scratch: &mut Scratch) {
        self.isa.call(Share { work: &self.work, cx, scratch });
    }

    fn scratch(&self, max_tokens: usize) -> ScratchNeed {
        self.work.scratch(max_tokens)
    }
}

/// Every kernel of an instruction set.
pub(crate) fn declarations(isa: Isa) -> Vec<Declaration> {
    let ops: [fn(Isa) -> Vec<Declaration>; 22] = [
        embed::declare,
        rms_norm::declare,
        layer_norm::declare,
        head_norm::declare,
        rope::declare,
        matmul::declare,
        pointwise::declare,
        glu::declare,
        copy::declare,
        ssm_conv::declare,
        ssm_dt::declare,
        ssm_scan::declare,
        gated_group_norm::declare,
        ssm_step::declare,
        short_conv::declare,
        delta_scan::declare,
        attention::declare,
        moe_route::declare,
        moe_matmul::declare,
        moe_combine::declare,
        choose::declare,
        quantize::declare,
    ];
    ops.into_iter().flat_map(|declare| declare(isa)).collect()
}

/// Binds work to an instruction set.
pub(crate) fn bind<W: Work>(isa: Isa, work: W) -> Box<dyn Kernel> {
    Box::new(Bound { isa, work })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_per_item() {
        for items in 1..=usize::BITS as usize {
            let counter = AtomicUsize::new(0);
            let most = most_parts(items);
            for part in 1..=most {
                for item in 0..items {
                    let parts = most - item % 2 * (most / 2);
                    if part <= parts {
                        assert_eq!(is_last_part(&counter, (item, items), parts), part == parts);
                    }
                }
            }
        }
        assert_eq!([1, 8, 24, 64, 65].map(most_parts), [255, 255, 3, 1, 0]);
    }

    #[test]
    fn runs_cover_all_items_once() {
        for threads in 1..=9 {
            for count in 0..200 {
                let runs: Vec<_> = (0..).map_while(|index| run(index, count, threads)).collect();
                let items: Vec<_> = runs.iter().cloned().flatten().collect();
                assert_eq!(items, (0..count).collect::<Vec<_>>(), "{threads} threads: {runs:?}");
                assert!((runs.len()..runs.len() + 20).all(|index| run(index, count, threads).is_none()));
                assert!(runs.windows(2).all(|two| two[0].len() >= two[1].len()), "{runs:?}");
            }
        }
    }
}
