//! Calls that are done together: the thread that writes a row, or a group of its columns, rounds it while it is still
//! in L1, without a barrier in between.

use mambo_kernel::{Call, Elem, Op, Operand, Program, Q8_BLOCK};

use crate::barriers::Touched;

/// For each call where it puts the rounded form of its output, if the next call would do no more than that.
pub(crate) fn roundings(program: &Program) -> Vec<Option<Operand>> {
    let next = program.calls.iter().skip(1).map(Some).chain([None]);
    program.calls.iter().zip(next).map(|(call, next)| rounding(program, call, next?)).collect()
}

fn rounding(program: &Program, call: &Call, next: &Call) -> Option<Operand> {
    let Op::Quantize(to) = next.op else { return None };
    let fits = next.inputs[0] == call.outputs[0] && can_round(&call.op, call.outputs[0].cols, to);
    // Other threads may still read where this one would write.
    let is_apart = !Touched::by(next, program).writes_what_is_used_by(&Touched::by(call, program));
    (fits && is_apart).then_some(next.outputs[0])
}

/// Whether an item of an op has whole rows, or columns that are whole blocks.
fn can_round(op: &Op, cols: usize, to: Elem) -> bool {
    let in_groups = |groups: usize| to == Elem::Q8 && (cols / groups.max(1)).is_multiple_of(Q8_BLOCK);
    match op {
        Op::RmsNorm { .. } => true,
        Op::GatedGroupNorm { groups, .. } => in_groups(*groups),
        Op::SsmStep { dims, .. } => in_groups(dims.groups),
        Op::Matmul { .. } | Op::MoeMatmul { .. } => to == Elem::Q8,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mambo_kernel::{Epilogue, Phase, Place, Rows, SsmDims};

    use super::*;

    fn operand(start: usize, elem: Elem) -> Operand {
        let (rows, cols) = (Rows::TOKENS, 64);
        Operand { place: Place::Arena(start), elem, rows, cols, stride_bytes: elem.row_bytes(cols) }
    }

    fn call(op: Op, input: Operand, output: Operand) -> Call {
        let (inputs, outputs) = (vec![input], vec![output]);
        Call { op, kernel: 0, label: String::new(), inputs, outputs, weights: Vec::new(), cache: None }
    }

    #[test]
    fn a_rounding_is_joined_where_it_follows_and_disturbs_nobody() {
        let (x, y, far) = (operand(0, Elem::F32), operand(4096, Elem::F32), operand(8192, Elem::Q8));
        let norm = call(Op::RmsNorm { eps: 0.0 }, x, y);
        let groups = |groups| call(Op::GatedGroupNorm { groups, eps: 0.0 }, x, y);
        let round = |from, to: Operand| call(Op::Quantize(to.elem), from, to);
        let product = call(Op::Matmul { out: 64, epilogue: Epilogue::None }, x, y);
        let experts = call(Op::MoeMatmul { experts: 2, top_k: 1, out: 64, epilogue: Epilogue::None }, x, y);
        let dims = SsmDims { heads: 4, head_dim: 16, state: 8, groups: 2, taps: 4 };
        let step = |dims| call(Op::SsmStep { dims, eps: 0.0 }, x, y);
        let parts = operand(8192, Elem::BF16X2);
        for (calls, is_joined) in [
            (vec![norm.clone(), round(y, far)], true),
            (vec![groups(2), round(y, far)], true),
            (vec![product.clone(), round(y, far)], true),
            (vec![experts, round(y, far)], true),
            (vec![step(dims), round(y, far)], true),
            (vec![norm.clone(), round(y, parts)], true),
            // Only rows are split in two parts.
            (vec![product, round(y, parts)], false),
            // Half a block in each group.
            (vec![groups(4), round(y, far)], false),
            (vec![step(SsmDims { groups: 4, ..dims }), round(y, far)], false),
            // Another thread may still read this.
            (vec![norm.clone(), round(y, operand(128, Elem::Q8))], false),
            (vec![norm.clone(), round(x, far)], false),
            (vec![call(Op::Add, x, y), round(y, far)], false),
        ] {
            let program = Program {
                name: String::new(),
                phase: Phase::Decode,
                max_tokens: 4,
                max_wanted: 1,
                calls,
                weights: Vec::new(),
                outputs: Vec::new(),
                arena_bytes: 1 << 14,
                unpooled_bytes: 0,
            };
            let want = is_joined.then(|| program.calls[1].outputs[0]);
            assert_eq!(roundings(&program), [want, None], "{:?}", program.calls);
        }
    }
}
