//! Which calls of a program touch the same memory, and so may not run at the same time. Knows operands and caches, not
//! ops.

use std::ops::Range;

use crate::op::CacheKind;
use crate::program::{Call, Operand, Place, Program};

/// What a call reads and writes in the largest step.
pub struct Touched {
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    cache: Option<(CacheKind, usize)>,
}

impl Touched {
    /// What a call of a program touches.
    pub fn by(call: &Call, program: &Program) -> Touched {
        let range = |operand: &Operand| {
            let Place::Arena(start) = operand.place else { return None };
            let rows = operand.rows.count(program.max_tokens, program.max_wanted);
            let last = rows.saturating_sub(1) * operand.stride_bytes;
            Some(start..start + last + operand.elem.row_bytes(operand.cols))
        };
        Touched {
            reads: call.inputs.iter().filter_map(range).collect(),
            writes: call.outputs.iter().chain(&call.rounded).filter_map(range).collect(),
            cache: call.op.cache().zip(call.cache),
        }
    }

    /// Whether one of two calls writes what the other touches.
    pub fn conflicts(&self, other: &Touched) -> bool {
        overlap(&self.reads, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.writes, &other.writes)
            || (self.cache.is_some() && self.cache == other.cache)
    }
}

fn overlap(a: &[Range<usize>], b: &[Range<usize>]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Program {
    /// Two calls that touch the same memory and are not ordered by [`Call::after`], if there are any: a backend that
    /// runs such a program has a data race.
    pub fn unordered_calls(&self) -> Option<(usize, usize)> {
        let touched: Vec<_> = self.calls.iter().map(|call| Touched::by(call, self)).collect();
        // For every call, the calls that have ended when it starts.
        let mut before: Vec<Vec<bool>> = Vec::with_capacity(self.calls.len());
        for (index, call) in self.calls.iter().enumerate() {
            let mut ended = vec![false; index];
            for &earlier in &call.after {
                if earlier >= index {
                    return Some((earlier, index));
                }
                ended[earlier] = true;
                before[earlier].iter().zip(&mut ended).for_each(|(waits, ended)| *ended |= waits);
            }
            let conflict =
                (0..index).find(|&other| !ended[other] && touched[index].conflicts(&touched[other]));
            if let Some(other) = conflict {
                return Some((other, index));
            }
            before.push(ended);
        }
        None
    }
}
