//! `moe_matmul`: `y[t,j] = W[e]·x` with `e = ids[t,j]`, then the epilogue. x is the token's row, or the
//! row of (token, j) when x already has one row per chosen expert.
//!
//! Tolerance: as `matmul`.

use mambo_tensor::DType;

use super::matmul;
use crate::case::{Case, Rng};
use crate::op::{Epilogue, Op};
use crate::value::{RowBase, Rows, ValueType};

/// The product of one (token, expert) pair; a gate is the expert's of a second weight.
pub fn reference(weights: &[&[f32]], out: usize, x: &[f32], expert: usize, epilogue: Epilogue) -> Vec<f32> {
    let size = out * x.len();
    let product = |weight: &[f32], epilogue, beside: &[f32]| {
        matmul::reference(&weight[expert * size..][..size], x, epilogue, beside)
    };
    let gate = weights.get(1).map_or(Vec::new(), |gate| product(gate, Epilogue::None, &[]));
    product(weights[0], epilogue, &gate)
}

/// Every stored type; one expert never chosen, one always, both forms of x.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(11);
    let mut cases = Vec::new();
    let (experts, top_k) = (7, 3);
    let mut shapes = Vec::new();
    for (index, (dtype, widths)) in matmul::types().into_iter().enumerate() {
        let cols = widths[widths.len() - 1].min(768);
        let cols = if dtype.row_bytes(cols).is_some() { cols } else { widths[0] };
        let out = if index % 2 == 1 { 48 } else { 33 };
        let epilogue = if index % 2 == 1 { Epilogue::None } else { Epilogue::Relu2 };
        shapes.push((dtype, cols, out, epilogue, index % 2 == 1, &[1, 2, 5, 40][..]));
    }
    for (index, (dtype, cols, out)) in matmul::GATED.into_iter().enumerate() {
        let activation = matmul::ACTIVATIONS[index % matmul::ACTIVATIONS.len()];
        shapes.push((dtype, cols, out, Epilogue::Glu(activation), index % 2 == 1, &[1, 2, 5, 40][..]));
    }
    // So many outputs that a backend cuts them for the usual expert, where one has far more rows.
    let relu2 = Epilogue::Relu2;
    shapes
        .extend([DType::Q4_0, DType::BF16].map(|dtype| (dtype, 64, 1200, relu2, false, &[1, 2, 5, 40][..])));
    shapes.push((DType::Q4_0, 64, 1200, relu2, false, &[24]));
    // More rows of one expert than a backend takes at a time.
    shapes.push((DType::NVFP4, 64, 1200, relu2, false, &[1, 90]));
    for (dtype, cols, out, epilogue, per_expert, lengths) in shapes {
        let op = Op::MoeMatmul { experts, top_k, out, epilogue };
        let times = if per_expert { top_k } else { 1 };
        let rows = Rows { base: RowBase::Tokens, times };
        let mut slot = 0;
        let name = format!("{dtype} {cols} -> {out}, {epilogue:?}, {times} rows a token");
        let mut case = Case::new(name, op, lengths, 1e-5);
        for _ in epilogue.products() {
            case = case.weight(matmul::weight(dtype, &[experts, out, cols], &mut rng, 0.3));
        }
        case = case.input_of(ValueType::f32(rows, cols), || rng.normal()).input_of(
            ValueType::i32(Rows::TOKENS, top_k),
            || {
                // Expert 0 is in every list, expert 6 in none, the others vary and never repeat.
                slot += 1;
                let (token, j) = ((slot - 1) / top_k, (slot - 1) % top_k);
                f32::from_bits([0, 1 + token % 3, 4 + token % 2][j] as u32)
            },
        );
        cases.push(case);
    }
    cases
}
