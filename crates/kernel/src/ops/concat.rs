//! `concat`: the columns of the first input, then those of the second.
//!
//! Tolerance: none; values are copied.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;

/// One row after the other.
pub fn reference(a: &[f32], b: &[f32]) -> Vec<f32> {
    [a, b].concat()
}

/// Even and uneven widths.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(3);
    let case = |&(a, b): &(usize, usize)| {
        let case = Case::new(format!("{a}+{b} columns"), Op::Concat, &RAGGED, 0.0);
        case.input(a, || rng.normal()).input(b, || rng.normal())
    };
    [(64, 64), (60, 61), (1, 17)].iter().map(case).collect()
}
