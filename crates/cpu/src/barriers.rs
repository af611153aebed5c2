//! Where a step needs barriers: before a call that conflicts over memory with a call since the last barrier, unless
//! the same single thread runs both.

use std::ops::Range;

use mambo_kernel::{Call, OpKind, Operand, Place, Program};

/// Up to this many output values, one thread finishes before others could usefully join in.
const SINGLE_THREAD_VALUES: usize = 8192;
/// How many calls back conflicts are looked for; after this many calls without a barrier one is forced.
const WINDOW: usize = 32;

/// How the team runs a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallSchedule {
    /// All threads wait at a barrier before it.
    pub needs_barrier: bool,
    /// Thread 0 runs it alone.
    pub is_single_threaded: bool,
}

/// For every call the calls shortly before it that touch the same memory.
pub(crate) struct Barriers {
    conflicts: Vec<Vec<usize>>,
    /// Calls that the call before does too.
    is_joined: Vec<bool>,
}

impl Barriers {
    /// Finds out what a program's calls touch; some round their output, which the call after each would do.
    pub fn of(program: &Program, roundings: &[Option<Operand>]) -> Barriers {
        let mut touched: Vec<_> = program.calls.iter().map(|call| Touched::by(call, program)).collect();
        let mut is_joined = vec![false; touched.len()];
        for (i, rounding) in roundings.iter().enumerate() {
            if rounding.is_some() {
                let done = std::mem::take(&mut touched[i + 1]);
                touched[i].join(done);
                is_joined[i + 1] = true;
            }
        }
        let conflicts = (0..touched.len())
            .map(|i| (i.saturating_sub(WINDOW)..i).filter(|&j| touched[i].conflicts(&touched[j])).collect());
        Barriers { conflicts: conflicts.collect(), is_joined }
    }

    /// Fills in the schedule for a step of this many tokens and wanted rows.
    pub fn schedule(
        &self,
        program: &Program,
        tokens: usize,
        wanted: usize,
        schedule: &mut Vec<CallSchedule>,
    ) {
        schedule.clear();
        let mut last_barrier = 0;
        for (i, (call, conflicts)) in program.calls.iter().zip(&self.conflicts).enumerate() {
            if self.is_joined[i] {
                schedule.push(CallSchedule { needs_barrier: false, is_single_threaded: false });
                continue;
            }
            let values: usize = call.outputs.iter().map(|o| o.rows.count(tokens, wanted) * o.cols).sum();
            let is_single_threaded = may_be_single_threaded(call) && values <= SINGLE_THREAD_VALUES;
            let waits =
                |&j: &usize| j >= last_barrier && !(is_single_threaded && schedule[j].is_single_threaded);
            let needs_barrier = conflicts.iter().any(waits) || i - last_barrier >= WINDOW;
            if needs_barrier {
                last_barrier = i;
            }
            schedule.push(CallSchedule { needs_barrier, is_single_threaded });
        }
    }
}

/// Ops whose work is divided evenly; the others have barriers or weights of their own.
fn may_be_single_threaded(call: &Call) -> bool {
    matches!(
        call.op.kind(),
        OpKind::Embed
            | OpKind::RmsNorm
            | OpKind::Quantize
            | OpKind::Add
            | OpKind::Relu2
            | OpKind::Concat
            | OpKind::GatherRows
            | OpKind::GatedGroupNorm
            | OpKind::MoeRoute
            | OpKind::MoeCombine
            | OpKind::SsmDt
    )
}

/// What a call reads and writes.
#[derive(Default)]
pub(crate) struct Touched {
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    cache: Option<usize>,
}

impl Touched {
    /// What a call touches in the largest step.
    pub fn by(call: &Call, program: &Program) -> Touched {
        let range = |operand: &Operand| {
            let Place::Arena(start) = operand.place else { return None };
            let rows = operand.rows.count(program.max_tokens, program.max_wanted);
            let last = rows.saturating_sub(1) * operand.stride_bytes;
            Some(start..start + last + operand.elem.row_bytes(operand.cols))
        };
        Touched {
            reads: call.inputs.iter().filter_map(range).collect(),
            writes: call.outputs.iter().filter_map(range).collect(),
            cache: call.cache,
        }
    }

    fn conflicts(&self, before: &Touched) -> bool {
        overlap(&self.reads, &before.writes)
            || self.writes_what_is_used_by(before)
            || (self.cache.is_some() && self.cache == before.cache)
    }

    /// Whether this writes where the other reads or writes.
    pub fn writes_what_is_used_by(&self, other: &Touched) -> bool {
        overlap(&self.writes, &other.reads) || overlap(&self.writes, &other.writes)
    }

    /// Adds what a call touches that is done with this one.
    fn join(&mut self, other: Touched) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
    }
}

fn overlap(a: &[Range<usize>], b: &[Range<usize>]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::joined::roundings;
    use mambo_kernel::{Elem, Epilogue, Op, Phase, Rows};

    fn operand(offset: usize, cols: usize) -> Operand {
        let place = Place::Arena(offset);
        Operand { place, elem: Elem::F32, rows: Rows::TOKENS, cols, stride_bytes: cols * 4 }
    }

    fn call(op: Op, input: Operand, output: Operand) -> Call {
        let (inputs, outputs) = (vec![input], vec![output]);
        Call { op, kernel: 0, label: String::new(), inputs, outputs, weights: Vec::new(), cache: None }
    }

    fn program(calls: Vec<Call>) -> Program {
        Program {
            name: String::new(),
            phase: Phase::Decode,
            max_tokens: 1024,
            max_wanted: 1,
            calls,
            weights: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 8 << 20,
            unpooled_bytes: 0,
        }
    }

    #[test]
    fn barriers_stand_where_calls_share_memory() {
        let matmul = |from, to| {
            call(Op::Matmul { out: 16, epilogue: Epilogue::None }, operand(from, 16), operand(to, 16))
        };
        let norm = |from, to| call(Op::RmsNorm { eps: 0.0 }, operand(from, 16), operand(to, 16));
        // A norm, three products of it, a norm of the last, and one over what the first norm wrote.
        let mib = 1 << 20;
        let calls = vec![
            norm(0, mib),
            matmul(mib, 2 * mib),
            matmul(mib, 3 * mib),
            matmul(mib, 4 * mib),
            norm(4 * mib, 5 * mib),
            norm(5 * mib, mib),
        ];
        let program = program(calls);
        let barriers = Barriers::of(&program, &roundings(&program));
        let mut schedule = Vec::new();
        barriers.schedule(&program, 1, 1, &mut schedule);
        let needs_barrier: Vec<bool> = schedule.iter().map(|call| call.needs_barrier).collect();
        assert_eq!(needs_barrier, [false, true, false, false, true, false]);
        assert!(schedule[0].is_single_threaded && !schedule[1].is_single_threaded);
        barriers.schedule(&program, 1024, 1, &mut schedule);
        let needs_barrier: Vec<bool> = schedule.iter().map(|call| call.needs_barrier).collect();
        assert_eq!(needs_barrier, [false, true, false, false, true, true]);
        assert!(!schedule[0].is_single_threaded);
    }

    #[test]
    fn a_rounding_joined_to_its_norm_needs_no_barrier() {
        let mib = 1 << 20;
        let rounded =
            |from| Operand { elem: Elem::Q8, stride_bytes: Elem::Q8.row_bytes(16), ..operand(from, 16) };
        let norm = |from, to| call(Op::RmsNorm { eps: 0.0 }, operand(from, 16), operand(to, 16));
        let calls = vec![
            norm(0, mib),
            call(Op::Quantize(Elem::Q8), operand(mib, 16), rounded(2 * mib)),
            call(Op::Matmul { out: 16, epilogue: Epilogue::None }, rounded(2 * mib), operand(3 * mib, 16)),
        ];
        let program = program(calls);
        for (roundings, want) in
            [(roundings(&program), [false, false, true]), (vec![None; 3], [false, true, true])]
        {
            let mut schedule = Vec::new();
            Barriers::of(&program, &roundings).schedule(&program, 1024, 1, &mut schedule);
            let needs_barrier: Vec<bool> = schedule.iter().map(|call| call.needs_barrier).collect();
            assert_eq!(needs_barrier, want);
        }
    }
}
