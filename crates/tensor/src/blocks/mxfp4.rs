//! `mxfp4`: 32 values in 17 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `e`: the scale is 2^(e − 127) |
//! | 1..17 | `qs`: the low nibble of byte j is the `e2m1` code of value j, the high nibble of value j + 16 |
//!
//! value = 2^(e − 127) · e2m1(code). No `e` means NaN; the largest overflows to infinity.

use super::decode_blocks;
use super::fp4::DOUBLED;

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
