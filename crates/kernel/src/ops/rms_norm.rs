//! `rms_norm`: `y = x · w / sqrt(mean(x²) + eps)`, over a row.
//!
//! Tolerance: the sum of squares and the root are f32, a few units in the last place each.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// The norm of one row, in f64.
pub fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(&x, &w)| (f64::from(x) * scale * f64::from(w)) as f32).collect()
}

/// Odd widths, tiny rows (where eps matters) and large ones.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(6);
    let case = |&(cols, scale): &(usize, f32)| {
        let weight = CaseWeight::f32(&[cols], &rng.normals(cols, 1.0));
        let op = Op::RmsNorm { eps: 1e-5 };
        let name = format!("{cols} columns of about {scale}");
        Case::new(name, op, &RAGGED, 3e-6).weight(weight).input(cols, || rng.normal() * scale)
    };
    [(1, 1.0), (60, 1e-4), (97, 1.0), (256, 300.0), (2688, 1.0)].iter().map(case).collect()
}
