//! `relu2`: `y = max(x, 0)²`, element by element.
//!
//! Tolerance: none; one rounded product has one right answer.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;

/// `max(x, 0)²` of one value.
pub fn value(x: f32) -> f32 {
    let positive = x.max(0.0);
    positive * positive
}

/// `max(x, 0)²` of a row.
pub fn reference(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| value(x)).collect()
}

/// Widths around a vector's length; values large enough that an f16 intermediate would overflow.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(2);
    let case = |&cols: &usize| {
        Case::new(format!("{cols} columns"), Op::Relu2, &RAGGED, 0.0).input(cols, || rng.range(-900.0, 900.0))
    };
    [1, 15, 16, 160].iter().map(case).collect()
}
