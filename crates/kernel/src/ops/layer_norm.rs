//! `layer_norm`: `y = (x − mean(x)) · w / sqrt(var(x) + eps) + b`, over a row.
//!
//! Tolerance: two sums and the root are f32; a mean far from zero costs digits, as in every f32 norm.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// The norm of one row, in f64.
pub fn reference(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    let value = |((&x, &w), &b): ((&f32, &f32), &f32)| {
        ((f64::from(x) - mean) * scale * f64::from(w) + f64::from(b)) as f32
    };
    x.iter().zip(weight).zip(bias).map(value).collect()
}

/// Odd widths, and rows far from zero.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(31);
    let case = |&(cols, offset): &(usize, f32)| {
        let op = Op::LayerNorm { eps: 1e-5 };
        Case::new(format!("{cols} columns about {offset}"), op, &RAGGED, 1e-5)
            .weight(CaseWeight::f32(&[cols], &rng.normals(cols, 1.0)))
            .weight(CaseWeight::f32(&[cols], &rng.normals(cols, 1.0)))
            .input(cols, || rng.normal() + offset)
    };
    [(2, 0.0), (60, 0.5), (97, -2.0), (2048, 0.1)].iter().map(case).collect()
}
