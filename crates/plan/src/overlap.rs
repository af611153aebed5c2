//! Which calls have to wait for which: a call waits for those whose memory it touches, and any two that are not
//! ordered that way may run at the same time.

use mambo_kernel::{Program, Touched};

/// Fills in [`Call::after`] for every call of a program.
pub(crate) fn order_calls(program: &mut Program) {
    let touched: Vec<_> = program.calls.iter().map(|call| Touched::by(call, program)).collect();
    // For every call, all calls that it waits for, directly or through others.
    let mut before: Vec<Vec<bool>> = Vec::with_capacity(touched.len());
    for index in 0..touched.len() {
        let (mut ordered, mut after) = (vec![false; index], Vec::new());
        for earlier in (0..index).rev() {
            if !ordered[earlier] && touched[index].conflicts(&touched[earlier]) {
                ordered[earlier] = true;
                before[earlier].iter().zip(&mut ordered).for_each(|(waits, ordered)| *ordered |= waits);
                after.insert(0, earlier);
            }
        }
        before.push(ordered);
        program.calls[index].after = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mambo_kernel::{Call, Elem, Op, Operand, Phase, Place, Rows};

    fn operand(offset: usize) -> Operand {
        let place = Place::Arena(offset);
        Operand { place, elem: Elem::F32, rows: Rows::TOKENS, cols: 16, stride_bytes: 64 }
    }

    fn order(calls: &[(&[usize], usize)]) -> Vec<Vec<usize>> {
        let call = |(inputs, output): &(&[usize], usize)| Call {
            op: Op::Add,
            kernel: 0,
            label: String::new(),
            inputs: inputs.iter().map(|at| operand(*at)).collect(),
            outputs: vec![operand(*output)],
            rounded: None,
            weights: Vec::new(),
            cache: None,
            after: Vec::new(),
        };
        let mut program = Program {
            name: String::new(),
            phase: Phase::Decode,
            max_tokens: 2,
            max_wanted: 1,
            calls: calls.iter().map(call).collect(),
            weights: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 0,
            unpooled_bytes: 0,
        };
        order_calls(&mut program);
        assert_eq!(program.unordered_calls(), None);
        program.calls.into_iter().map(|call| call.after).collect()
    }

    #[test]
    fn calls_wait_for_those_they_read_and_overwrite() {
        // A value, two that read it, their sum, and one that overwrites what the first read.
        let after = order(&[(&[], 0), (&[0], 1000), (&[0], 2000), (&[1000, 2000], 3000), (&[3000], 0)]);
        assert_eq!(after, [vec![], vec![0], vec![0], vec![1, 2], vec![3]]);
        // The second row of a value counts too, and what is not touched does not.
        assert_eq!(order(&[(&[], 0), (&[64], 1000), (&[128], 2000)]), [vec![], vec![0], vec![]]);
        // Writing where another writes, or reads.
        assert_eq!(order(&[(&[5000], 0), (&[], 0), (&[], 5000)]), [vec![], vec![0], vec![0]]);
    }
}
