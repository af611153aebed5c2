//! `bias`: `y = x + b`, the same vector for every row.
//!
//! Tolerance: none; one rounded sum has one right answer.

use super::add;
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// One row.
pub fn reference(x: &[f32], bias: &[f32]) -> Vec<f32> {
    add::reference(x, bias)
}

/// Widths around a vector's length.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(35);
    let case = |&cols: &usize| {
        Case::new(format!("{cols} columns"), Op::Bias, &RAGGED, 0.0)
            .weight(CaseWeight::f32(&[cols], &rng.normals(cols, 1.0)))
            .input(cols, || rng.normal())
    };
    [1, 15, 16, 160].iter().map(case).collect()
}
