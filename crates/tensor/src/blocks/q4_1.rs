//! `q4_1`: 32 values in 20 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `m`, f16 |
//! | 4..20 | `qs`: the low nibble of byte j is the code of value j, the high nibble of value j + 16 |
//!
//! value = d · code + m

use super::{decode_blocks, read_f16};

pub(crate) const SIZE: (usize, usize) = (32, 20);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, m) = (read_f16(block, 0), read_f16(block, 2));
        for j in 0..16 {
            let byte = block[4 + j];
            out[j] = d * f32::from(byte & 15) + m;
            out[j + 16] = d * f32::from(byte >> 4) + m;
        }
    });
}
