//! `soft_cap`: `y = cap · tanh(x / cap)`, element by element.
//!
//! Tolerance: one hyperbolic tangent in f32.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;

/// One value, in f64.
pub fn value(cap: f32, x: f32) -> f32 {
    (f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh()) as f32
}

/// A row.
pub fn reference(cap: f32, x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| value(cap, x)).collect()
}

/// Values far below the cap and far above it.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(38);
    let case = |&(cols, scale): &(usize, f32)| {
        let op = Op::SoftCap { cap: 30.0 };
        Case::new(format!("{cols} columns about {scale}"), op, &RAGGED, 4e-6)
            .input(cols, || rng.normal() * scale)
    };
    [(1, 1.0), (33, 20.0), (256, 300.0)].iter().map(case).collect()
}
