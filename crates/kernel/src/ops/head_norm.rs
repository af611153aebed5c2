//! `head_norm`: `rms_norm` of every head of a row on its own, all times one weight vector.
//!
//! Tolerance: as `rms_norm`.

use super::rms_norm;
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// The norm of one row, in f64.
pub fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    x.chunks(weight.len()).flat_map(|head| rms_norm::reference(head, weight, eps)).collect()
}

/// Odd and released head sizes; tiny rows, where eps matters.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(32);
    let case = |&(heads, head_dim, scale): &(usize, usize, f32)| {
        let op = Op::HeadNorm { head_dim, eps: 1e-6 };
        Case::new(format!("{heads} heads of {head_dim} about {scale}"), op, &RAGGED, 3e-6)
            .weight(CaseWeight::f32(&[head_dim], &rng.normals(head_dim, 1.0)))
            .input(heads * head_dim, || rng.normal() * scale)
    };
    [(1, 12, 1.0), (6, 22, 1e-3), (3, 14, 100.0), (8, 128, 1.0), (4, 256, 1.0)].iter().map(case).collect()
}
