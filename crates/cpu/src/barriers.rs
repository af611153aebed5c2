//! Where a step needs barriers: before a call that waits for a call since the last barrier, unless the same single
//! thread runs both. Which calls wait for which is the plan's knowledge ([`mambo_kernel::Call::after`]).

use mambo_kernel::Program;

/// Up to this many output values, one thread finishes before others could usefully join in.
const SINGLE_THREAD_VALUES: usize = 8192;

/// How the team runs a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CallSchedule {
    /// All threads wait at a barrier before it.
    pub needs_barrier: bool,
    /// Thread 0 runs it alone.
    pub is_single_threaded: bool,
}

/// The schedule of a step of this many tokens and wanted rows; `may_run_alone` says which calls one thread may run.
pub(crate) fn schedule(
    program: &Program,
    may_run_alone: &[bool],
    (tokens, wanted): (usize, usize),
    into: &mut Vec<CallSchedule>,
) {
    into.clear();
    let mut last_barrier = 0;
    for (index, call) in program.calls.iter().enumerate() {
        let values: usize = call.outputs.iter().map(|o| o.rows.count(tokens, wanted) * o.cols).sum();
        let is_single_threaded = may_run_alone[index] && values <= SINGLE_THREAD_VALUES;
        let waits =
            |&other: &usize| other >= last_barrier && !(is_single_threaded && into[other].is_single_threaded);
        let needs_barrier = call.after.iter().any(waits);
        if needs_barrier {
            last_barrier = index;
        }
        into.push(CallSchedule { needs_barrier, is_single_threaded });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mambo_kernel::{Call, Elem, Op, Operand, Phase, Place, Rows};

    fn call(after: &[usize]) -> Call {
        let place = Place::Arena(0);
        let operand = Operand { place, elem: Elem::F32, rows: Rows::TOKENS, cols: 16, stride_bytes: 64 };
        Call {
            op: Op::Relu2,
            kernel: 0,
            label: String::new(),
            inputs: vec![operand],
            outputs: vec![operand],
            rounded: None,
            weights: Vec::new(),
            cache: None,
            after: after.to_vec(),
        }
    }

    #[test]
    fn threads_wait_where_another_may_still_be_at_work() {
        // A norm, three products of it, a norm of the last, and one more of that.
        let calls = [&[][..], &[0], &[0], &[0], &[3], &[4]].map(call).to_vec();
        let program = Program {
            name: String::new(),
            phase: Phase::Decode,
            max_tokens: 1024,
            max_wanted: 1,
            calls,
            weights: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 8 << 20,
            unpooled_bytes: 0,
        };
        let alone = [true, false, false, false, true, true];
        let barriers = |tokens| {
            let mut calls = Vec::new();
            schedule(&program, &alone, (tokens, 1), &mut calls);
            (calls.iter().map(|call| call.needs_barrier).collect(), calls[0].is_single_threaded)
        };
        assert_eq!(barriers(1), (vec![false, true, false, false, true, false], true));
        assert_eq!(barriers(1024), (vec![false, true, false, false, true, true], false));
    }
}
