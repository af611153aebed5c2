//! `add`: `y = a + b`, element by element.
//!
//! Tolerance: none; one rounded addition has one right answer.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;

/// `a + b`.
pub fn reference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Widths around a vector's length.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(1);
    [1, 7, 16, 60, 257]
        .iter()
        .map(|&cols| {
            let case = Case::new(format!("{cols} columns"), Op::Add, &RAGGED, 0.0);
            case.input(cols, || rng.normal()).input(cols, || rng.range(-3.0, 3.0))
        })
        .collect()
}
