//! `quantize`: f32 rows to 8-bit rows. Per block of 32: `scale = amax/127`, `code = round(x·127/amax)`
//! with ties to even, `sum = Σ code`; a block of zeros has scale and codes zero.
//!
//! The last block of a row is padded with zeros. Tolerance: half a code, which is 1/254 of the block's
//! largest value; blocks are compared by their decoded values.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;
use crate::value::{Elem, Q8_BLOCK};

/// One row in the layout of [`Elem::Q8`], as bytes.
pub fn reference(x: &[f32]) -> Vec<u8> {
    let blocks = x.len().div_ceil(Q8_BLOCK);
    let mut codes = vec![0u8; x.len()];
    let mut scales = Vec::with_capacity(blocks * 4);
    let mut sums = Vec::with_capacity(blocks * 4);
    for (values, codes) in x.chunks(Q8_BLOCK).zip(codes.chunks_mut(Q8_BLOCK)) {
        let amax = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
        let mut sum = 0i32;
        for (value, code) in values.iter().zip(codes) {
            let q = (value * inverse).round_ties_even() as i8;
            sum += i32::from(q);
            *code = q as u8;
        }
        scales.extend_from_slice(&(amax / 127.0).to_le_bytes());
        sums.extend_from_slice(&sum.to_le_bytes());
    }
    let mut row = [codes, scales, sums].concat();
    row.resize(Elem::Q8.row_bytes(x.len()), 0);
    row
}

/// The values a row stands for.
pub fn decode(row: &[u8], cols: usize) -> Vec<f32> {
    let scale = |block: usize| {
        let at = cols + block * 4;
        f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
    };
    (0..cols).map(|i| f32::from(row[i] as i8) * scale(i / Q8_BLOCK)).collect()
}

/// Zeros, outliers and tiny values.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(9);
    let case =
        |&(cols, outlier): &(usize, f32)| {
            let mut count = 0;
            Case::new(format!("{cols} columns, outlier {outlier}"), Op::Quantize, &RAGGED, 1.01 / 254.0)
                .input(cols, || {
                    count += 1;
                    match count % 96 {
                        0 => outlier,
                        1..32 => 0.0,
                        _ => rng.normal(),
                    }
                })
        };
    [(32, 1.0), (96, 1e4), (256, 1e-6), (2688, 50.0)].iter().map(case).collect()
}
