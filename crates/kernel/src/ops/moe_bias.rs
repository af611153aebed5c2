//! `moe_bias`: `y[t,j] = x[t,j] + b[id[t,j]]`: every row of a (token, chosen expert) gets its expert's vector.
//!
//! Tolerance: none; one rounded sum has one right answer.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;
use crate::value::{RowBase, Rows, ValueType};

/// One row of an expert.
pub fn reference(x: &[f32], bias: &[f32], expert: usize) -> Vec<f32> {
    super::add::reference(x, &bias[expert * x.len()..][..x.len()])
}

/// Few and many experts, odd widths.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(36);
    let case = |&(experts, top_k, cols): &(usize, usize, usize)| {
        let rows = ValueType::f32(Rows { base: RowBase::Tokens, times: top_k }, cols);
        let mut ids = Rng(37);
        let id = move || f32::from_bits(ids.below(experts) as u32);
        Case::new(
            format!("{top_k} of {experts}, {cols} columns"),
            Op::MoeBias { experts, top_k },
            &RAGGED,
            0.0,
        )
        .weight(CaseWeight::f32(&[experts, cols], &rng.normals(experts * cols, 1.0)))
        .input_of(rows, || rng.normal())
        .input_of(ValueType::i32(Rows::TOKENS, top_k), id)
    };
    [(5, 2, 24), (6, 3, 33), (32, 4, 64)].iter().map(case).collect()
}
