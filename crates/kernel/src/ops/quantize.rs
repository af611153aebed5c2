//! `quantize`: f32 rows to rows of 8-bit blocks or of two bf16 for each value.
//!
//! Per block of 32: `scale = amax/127`, `code = round(x·127/amax)` with ties to even; a block of zeros has
//! scale and codes zero, and the last block of a row is padded with zeros. Of two bf16 the first is the value
//! rounded and the second what that left, rounded; parts below [`BF16X2_LEAST`] are zero, and a value that
//! bf16 is too small for becomes NaN. Rows are compared by their decoded values, which have to be equal.

use crate::case::{Case, RAGGED, Rng};
use crate::op::Op;
use crate::rounding::{bf16_bits, bf16_value};
use crate::value::{BF16X2_LEAST, Elem, Q8_ANCHOR, Q8_BLOCK, Q8_BLOCK_BYTES};

/// One row in the layout of a rounded type, as bytes.
pub fn reference(x: &[f32], to: Elem) -> Vec<u8> {
    let bytes = to.row_bytes(x.len());
    let mut row = if to == Elem::BF16X2 {
        let part = |v: f32| if v.abs() < BF16X2_LEAST { 0 } else { bf16_bits(v) };
        let mut parts: Vec<u8> = x.iter().flat_map(|&v| part(v).to_le_bytes()).collect();
        parts.resize(bytes / 2, 0);
        parts.extend(x.iter().flat_map(|&v| part(v - bf16_value(part(v))).to_le_bytes()));
        parts
    } else {
        blocks(x)
    };
    row.resize(bytes, 0);
    row
}

fn blocks(x: &[f32]) -> Vec<u8> {
    let mut row = Vec::with_capacity(Elem::Q8.row_bytes(x.len()));
    for values in x.chunks(Q8_BLOCK) {
        let amax = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let inverse = if amax > 0.0 { 127.0 / amax } else { 0.0 };
        let mut codes = [0i8; Q8_BLOCK];
        for (value, code) in values.iter().zip(&mut codes) {
            *code = (value * inverse).round_ties_even() as i8;
        }
        let offset = |codes: &[i8]| -128 * codes.iter().map(|&code| i32::from(code)).sum::<i32>();
        row.extend(codes.map(|code| code as u8));
        row.extend((amax / 127.0).to_le_bytes());
        row.extend(offset(&codes).to_le_bytes());
        row.extend(offset(&codes[..Q8_BLOCK / 2]).to_le_bytes());
        row.extend((Q8_ANCHOR + offset(&codes) as f32).to_le_bytes());
    }
    row
}

/// The values a row of a rounded type stands for.
pub fn decode(row: &[u8], from: Elem, cols: usize) -> Vec<f32> {
    if from == Elem::BF16X2 {
        let parts = row[..from.row_bytes(cols)].as_chunks::<2>().0;
        let value = |i: usize| bf16_value(u16::from_le_bytes(parts[i]));
        return (0..cols).map(|i| value(i) + value(parts.len() / 2 + i)).collect();
    }
    let value = |i: usize| {
        let block = &row[i / Q8_BLOCK * Q8_BLOCK_BYTES..][..Q8_BLOCK_BYTES];
        let scale = f32::from_le_bytes([block[32], block[33], block[34], block[35]]);
        f32::from(block[i % Q8_BLOCK] as i8) * scale
    };
    (0..cols).map(value).collect()
}

/// Zeros, outliers and tiny values.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(9);
    let case = |&(cols, outlier, to): &(usize, f32, Elem)| {
        let mut count = 0;
        let name = format!("{cols} columns, outlier {outlier}, to {}", to.name());
        Case::new(name, Op::Quantize(to), &RAGGED, 1.01 / 254.0).input(cols, || {
            count += 1;
            match count % 96 {
                0 => outlier,
                1..32 => 0.0,
                _ => rng.normal(),
            }
        })
    };
    let q8 =
        [(32, 1.0), (96, 1e4), (256, 1e-6), (2688, 50.0)].map(|(cols, outlier)| (cols, outlier, Elem::Q8));
    let bf16 = [(1, 1.0), (47, 1e30), (2688, 1e-20)].map(|(cols, outlier)| (cols, outlier, Elem::BF16X2));
    q8.iter().chain(&bf16).map(case).collect()
}
