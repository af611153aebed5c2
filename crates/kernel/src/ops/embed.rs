//! `embed`: `y[t] = table[id[t]]`, widened to f32.
//!
//! Tolerance: none; decoding a stored value has one right answer.

use mambo_tensor::DType;

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;
use crate::value::{Rows, ValueType};

/// The row of one token.
pub fn reference(table: &[f32], cols: usize, id: u32) -> Vec<f32> {
    table[id as usize * cols..][..cols].to_vec()
}

/// Every stored type; the ids include the first and the last row.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(4);
    let types = [
        (DType::F32, 60),
        (DType::F16, 33),
        (DType::BF16, 64),
        (DType::Q8_0, 64),
        (DType::Q4_0, 96),
        (DType::Q5_0, 32),
        (DType::Q4K, 256),
        (DType::Q6K, 512),
    ];
    let case = |&(dtype, cols): &(DType, usize)| {
        let rows = 37;
        let table = CaseWeight::encode(dtype, &[rows, cols], &rng.normals(rows * cols, 0.5));
        let mut count = 0;
        Case::new(format!("{dtype}"), Op::Embed, &RAGGED, 0.0).weight(table).input_of(
            ValueType::i32(Rows::TOKENS, 1),
            || {
                count += 1;
                f32::from_bits(((count * 7) % rows) as u32)
            },
        )
    };
    types.iter().map(case).collect()
}
