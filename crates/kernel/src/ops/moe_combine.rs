//! `moe_combine`: `y[t] = Σ_j w[t,j]·x[t,j]`, rounded to f32, plus the residual if there is one: the bits of the sum and
//! an `add`.
//!
//! Tolerance: an f32 sum of a few products.

use crate::case::{Case, Rng};
use crate::op::Op;
use crate::value::{RowBase, Rows, ValueType};

/// The weighted sum of one token's rows, in f64; the residual is added to the rounded sum.
pub fn reference(rows: &[f32], weights: &[f32], residual: Option<&[f32]>) -> Vec<f32> {
    let cols = rows.len() / weights.len();
    let sum = |i: usize| {
        let routed: f64 =
            weights.iter().enumerate().map(|(j, &w)| f64::from(w) * f64::from(rows[j * cols + i])).sum();
        residual.map_or(routed as f32, |residual| routed as f32 + residual[i])
    };
    (0..cols).map(sum).collect()
}

/// With and without a residual, one expert and many.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(12);
    let case = |&(top_k, cols, residual): &(usize, usize, bool)| {
        let op = Op::MoeCombine { top_k, residual };
        let rows = ValueType::f32(Rows { base: RowBase::Tokens, times: top_k }, cols);
        let mut case =
            Case::new(format!("{top_k} experts of {cols}, residual {residual}"), op, &[1, 2, 40], 2e-6)
                .input_of(rows, || rng.normal())
                .input(top_k, || rng.unit());
        if residual {
            case = case.input(cols, || rng.normal());
        }
        case
    };
    [(1, 17, false), (3, 64, true), (6, 60, false), (22, 129, true)].iter().map(case).collect()
}
