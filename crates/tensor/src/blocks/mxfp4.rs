//! `mxfp4`: 32 values in 17 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`: the scale is 2^(e − 127) |
//! | 1..17 | `qs`: the low nibble of byte j is the `e2m1` code of value j, the high nibble of value j + 16 |
//!
//! value = 2^(e − 127) · e2m1(code). No `e` encodes NaN; the largest overflows to infinity.

use super::fp4::{DOUBLED, E2m1, codes};
use super::search::{Part, error, extreme, inverse};
use super::{decode_blocks, encode_blocks};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 17);

/// Half the scale, for the doubled codes: 2^(e − 128), which the two smallest store as subnormals.
fn half_scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let half = half_scale(block[0]);
        for j in 0..16 {
            let byte = block[1 + j];
            out[j] = half * DOUBLED[usize::from(byte & 15)];
            out[j + 16] = half * DOUBLED[usize::from(byte >> 4)];
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(
        DType::MXFP4,
        values,
        importance,
        out,
        |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
            let largest = extreme(part.x).abs();
            // The exponent that puts the largest value on 4..8; beyond 6 it is clipped, so the next may be better.
            let plain = ((largest.to_bits() >> 23) as u8).saturating_sub(2).max(1);
            let mut best = (plain, f32::INFINITY);
            for e in [plain, plain + 1, plain.max(2) - 1] {
                let error = error::<E2m1, _>(part, 2.0 * half_scale(e));
                if error < best.1 {
                    best = (e, error);
                }
            }
            let inv = inverse(2.0 * half_scale(best.0));
            let q = codes(part.x, inv);
            block[0] = best.0;
            for j in 0..16 {
                block[1 + j] = q[j] | q[j + 16] << 4;
            }
            Some(())
        },
    )
}
