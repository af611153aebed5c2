//! `moe_matmul`: `y[t,j] = W[e]·x` with `e = ids[t,j]`, then the epilogue. x is the token's row, or the
//! row of (token, j) when x already has one row per chosen expert.
//!
//! Tolerance: as `matmul`.

use mambo_tensor::DType;

use super::matmul;
use crate::case::{Case, Rng};
use crate::op::{Epilogue, Op};
use crate::value::{RowBase, Rows, ValueType};

/// The product of one (token, expert) pair.
pub fn reference(weight: &[f32], out: usize, x: &[f32], expert: usize, epilogue: Epilogue) -> Vec<f32> {
    let size = out * x.len();
    matmul::reference(&weight[expert * size..][..size], x, epilogue, &[])
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
        shapes.push((dtype, cols, out, index % 2 == 1, &[1, 2, 5, 40][..]));
    }
    // So many outputs that a backend cuts them for the usual expert, where one has far more rows.
    shapes.extend([DType::Q4_0, DType::BF16].map(|dtype| (dtype, 64, 1200, false, &[1, 2, 5, 40][..])));
    shapes.push((DType::Q4_0, 64, 1200, false, &[24]));
    // More rows of one expert than a backend takes at a time.
    shapes.push((DType::NVFP4, 64, 1200, false, &[1, 90]));
    for (dtype, cols, out, per_expert, lengths) in shapes {
        let epilogue = if per_expert { Epilogue::None } else { Epilogue::Relu2 };
        let weight = matmul::weight(dtype, &[experts, out, cols], &mut rng, 0.3);
        let op = Op::MoeMatmul { experts, top_k, out, epilogue };
        let times = if per_expert { top_k } else { 1 };
        let rows = Rows { base: RowBase::Tokens, times };
        let mut slot = 0;
        let case = Case::new(format!("{dtype} {cols} -> {out}, {times} rows a token"), op, lengths, 1e-5)
            .weight(weight)
            .input_of(ValueType::f32(rows, cols), || rng.normal())
            .input_of(ValueType::i32(Rows::TOKENS, top_k), || {
                // Expert 0 is in every list, expert 6 in none, the others vary and never repeat.
                slot += 1;
                let (token, j) = ((slot - 1) / top_k, (slot - 1) % top_k);
                f32::from_bits([0, 1 + token % 3, 4 + token % 2][j] as u32)
            });
        cases.push(case);
    }
    cases
}
