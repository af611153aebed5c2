//! `gather_rows`: the rows of x whose logits are wanted, in the order they are listed.
//!
//! Tolerance: none; values are copied.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;

/// One wanted row.
pub fn reference(x: &[f32]) -> Vec<f32> {
    x.to_vec()
}

/// Rows of several widths; the runner lists the wanted rows.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(5);
    let case = |&cols: &usize| {
        Case::new(format!("{cols} columns"), Op::GatherRows, &RAGGED, 0.0).input(cols, || rng.normal())
    };
    [1, 60, 128].iter().map(case).collect()
}
