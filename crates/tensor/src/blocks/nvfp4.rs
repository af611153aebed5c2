//! `nvfp4`: 64 values in 36 bytes, 4 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | a scale per sub-block, unsigned `e4m3`: four exponent bits of bias 7, three mantissa bits |
//! | 4..36 | `qs`: 8 bytes per sub-block; the low nibble of byte j is the `e2m1` code of value j, the high nibble of value j + 8 |
//!
//! value = scale · e2m1(code). The scale 0x7f means 0; bit 7 is ignored. A tensor's own multiplier, where it
//! has one, is the caller's business.

use super::decode_blocks;
use super::fp4::DOUBLED;

pub(crate) const SIZE: (usize, usize) = (64, 36);

/// Half the scale, for the doubled codes.
fn half_scale(byte: u8) -> f32 {
    let mantissa = f32::from(byte & 7);
    match (byte, byte >> 3 & 15) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        (_, exponent) => (8.0 + mantissa) * f32::from_bits((u32::from(exponent) + 116) << 23),
    }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        for (k, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let half = half_scale(block[k]);
            for j in 0..8 {
                let byte = block[4 + 8 * k + j];
                out[j] = half * DOUBLED[usize::from(byte & 15)];
                out[j + 8] = half * DOUBLED[usize::from(byte >> 4)];
            }
        }
    });
}
