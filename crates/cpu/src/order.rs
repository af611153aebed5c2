//! When members have to meet: a call waits only for calls whose memory it touches, and not even for those
//! where one member alone has done them and does this one too.

use std::ops::Range;

use mambo_kernel::{Call, OpKind, Operand, Place, Program};

/// Up to so many values one member is done before others could have joined in.
const ALONE_VALUES: usize = 8192;
/// Calls that are looked back over; after as many without a meeting there is one.
const WINDOW: usize = 32;

/// How members go about a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    /// All meet before it.
    pub meets: bool,
    /// The first member does it alone.
    pub is_alone: bool,
}

/// For every call the calls shortly before it that touch the same memory.
pub(crate) struct Order {
    conflicts: Vec<Vec<usize>>,
    /// Calls that the call before does too.
    is_joined: Vec<bool>,
}

impl Order {
    /// Finds out what a program's calls touch; some round their output, which the call after each would do.
    pub fn of(program: &Program, roundings: &[Option<Operand>]) -> Order {
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
        Order { conflicts: conflicts.collect(), is_joined }
    }

    /// Fills in the turns of a step of so many tokens and wanted rows.
    pub fn take_turns(&self, program: &Program, tokens: usize, wanted: usize, turns: &mut Vec<Turn>) {
        turns.clear();
        let mut last_meeting = 0;
        for (i, (call, conflicts)) in program.calls.iter().zip(&self.conflicts).enumerate() {
            if self.is_joined[i] {
                turns.push(Turn { meets: false, is_alone: false });
                continue;
            }
            let values: usize = call.outputs.iter().map(|o| o.rows.count(tokens, wanted) * o.cols).sum();
            let is_alone = may_be_alone(call) && values <= ALONE_VALUES;
            let waits = |&j: &usize| j >= last_meeting && !(is_alone && turns[j].is_alone);
            let meets = conflicts.iter().any(waits) || i - last_meeting >= WINDOW;
            if meets {
                last_meeting = i;
            }
            turns.push(Turn { meets, is_alone });
        }
    }
}

/// Ops whose work is shared out evenly; the others have meetings or weights of their own.
fn may_be_alone(call: &Call) -> bool {
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
    fn members_meet_where_memory_says_so() {
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
        let order = Order::of(&program, &roundings(&program));
        let mut turns = Vec::new();
        order.take_turns(&program, 1, 1, &mut turns);
        let meets: Vec<bool> = turns.iter().map(|turn| turn.meets).collect();
        assert_eq!(meets, [false, true, false, false, true, false]);
        assert!(turns[0].is_alone && !turns[1].is_alone);
        order.take_turns(&program, 1024, 1, &mut turns);
        let meets: Vec<bool> = turns.iter().map(|turn| turn.meets).collect();
        assert_eq!(meets, [false, true, false, false, true, true]);
        assert!(!turns[0].is_alone);
    }

    #[test]
    fn nobody_waits_for_a_rounding_that_is_done_with_its_norm() {
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
            let mut turns = Vec::new();
            Order::of(&program, &roundings).take_turns(&program, 1024, 1, &mut turns);
            let meets: Vec<bool> = turns.iter().map(|turn| turn.meets).collect();
            assert_eq!(meets, want);
        }
    }
}
