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

use super::iq4_nl::{STEPS, Steps, write_codes};
use super::nested::nested;
use super::search::Part;
use super::{decode_blocks, encode_blocks, read_f16, read_u16, write_f16};
use crate::{DType, TensorError};

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

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(
        DType::IQ4_XS,
        values,
        importance,
        out,
        |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
            let parts = part.split::<8, 32>();
            let best = nested::<Steps, 8, 32>(&parts, (-32.0, 31.0))?;
            block.fill(0);
            write_f16(block, 0, best.d);
            for (b, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
                let scale = (sub + 32) as u8;
                block[2 + b / 4] |= (scale >> 4) << (b % 4 * 2);
                block[4 + b / 2] |= (scale & 15) << (b % 2 * 4);
                write_codes(part.x, best.d * f32::from(sub), &mut block[8 + 16 * b..][..16]);
            }
            Some(())
        },
    )
}
