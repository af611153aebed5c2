//! `ssm_dt`: `y = softplus(dt + bias)`, the identity above 20. Never clamped.
//!
//! Tolerance: one exponential and one logarithm in f32. Far below zero softplus is the exponential
//! itself, so the error is judged against each value, not against the row's largest.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// `ln(1 + exp(x))`, the identity above 20.
pub fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `softplus(dt + bias)` of one row, in f64.
pub fn reference(dt: &[f32], bias: &[f32]) -> Vec<f32> {
    dt.iter().zip(bias).map(|(&dt, &bias)| softplus(f64::from(dt) + f64::from(bias)) as f32).collect()
}

/// Single heads make every value its row's largest, so that errors of small steps are not hidden by larger ones.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(8);
    let case = |&(heads, low, high): &(usize, f32, f32)| {
        let bias = CaseWeight::f32(&[heads], &rng.normals(heads, 0.1));
        let case =
            Case::new(format!("{heads} heads in {low}..{high}"), Op::SsmDt, &RAGGED, 4e-6).weight(bias);
        case.input(heads, || rng.range(low, high))
    };
    [(1, -16.0, -6.0), (1, -1.0, 1.0), (1, 15.0, 25.0), (12, -9.0, 3.0), (96, -5.0, 25.0)]
        .iter()
        .map(case)
        .collect()
}
