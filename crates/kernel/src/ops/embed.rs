//! `embed`: `y[t] = table[id[t]]`, widened to f32.
//!
//! Tolerance: none; decoding a stored value has one right answer.

use mambo_tensor::DType;

use super::matmul;
use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;
use crate::value::{Rows, ValueType};

/// The row of one token.
pub fn reference(table: &[f32], cols: usize, id: u32) -> Vec<f32> {
    table[id as usize * cols..][..cols].to_vec()
}

/// Every stored type; the ids include the first and the last row.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(4);
    let case = |(dtype, widths): (DType, &[usize])| {
        let cols = widths[widths.len() - 1];
        let rows = 37;
        let table = matmul::weight(dtype, &[rows, cols], &mut rng, 0.5);
        let mut count = 0;
        Case::new(format!("{dtype}"), Op::Embed, &RAGGED, 0.0).weight(table).input_of(
            ValueType::i32(Rows::TOKENS, 1),
            || {
                count += 1;
                f32::from_bits(((count * 7) % rows) as u32)
            },
        )
    };
    matmul::types().into_iter().map(case).collect()
}
