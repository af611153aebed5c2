//! `iq4_xs`: 256 values in 136 bytes, 8 sub-blocks of 32 values on the steps of `iq4_nl`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..4 | u16: bits 2b..2b+2 are the high bits of sub-block b's scale |
//! | 4..8 | low four bits of the scales, a nibble per sub-block, the low one first |
//! | 8..136 | `qs`: 16 bytes per sub-block; the low nibble of byte j is value j, the high nibble value j + 16 |
//!
//! value = d · (scale − 32) · STEPS\[code\]

use super::iq4_nl::STEPS;
use super::{decode_blocks, read_f16, read_u16};

pub(crate) const SIZE: (usize, usize) = (256, 136);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        let high = read_u16(block, 2);
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = block[4 + b / 2] >> (b % 2 * 4) & 15;
            let scale = d * (f32::from(u16::from(low) | (high >> (2 * b) & 3) << 4) - 32.0);
            for j in 0..16 {
                let byte = block[8 + 16 * b + j];
                out[j] = scale * STEPS[usize::from(byte & 15)];
                out[j + 16] = scale * STEPS[usize::from(byte >> 4)];
            }
        }
    });
}
