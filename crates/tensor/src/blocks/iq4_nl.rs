//! `iq4_nl`: 32 values in 18 bytes, on a table of sixteen steps that are finer near zero.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: the low nibble of byte j is the code of value j, the high nibble of value j + 16 |
//!
//! value = d · STEPS\[code\]

use super::{decode_blocks, read_f16};

pub(crate) const SIZE: (usize, usize) = (32, 18);

/// What a code stands for.
pub(super) const STEPS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for j in 0..16 {
            let byte = block[2 + j];
            out[j] = d * STEPS[usize::from(byte & 15)];
            out[j + 16] = d * STEPS[usize::from(byte >> 4)];
        }
    });
}
