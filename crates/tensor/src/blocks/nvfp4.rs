//! `nvfp4`: 64 values in 36 bytes, 4 sub-blocks of 16 values.

use bytemuck::{Pod, Zeroable};

use super::fp4::{DOUBLED, E2M1_MAX, E2m1, codes};
use super::search::{Part, error, extreme, inverse};
use super::{Block, decode_blocks, encode_blocks};
use crate::{DType, TensorError};

/// 64 values, 4 sub-blocks of 16: `scale · e2m1(code)`. A tensor's own multiplier, where it has one, is the
/// caller's business.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Nvfp4 {
    /// A scale per sub-block, unsigned `e4m3`: four exponent bits of bias 7, three mantissa bits. 0x7f
    /// means 0; bit 7 is ignored.
    pub scales: [u8; 4],
    /// Sub-blocks: the low nibble of byte j is the `e2m1` code of value j, the high nibble of value j +
    /// 8.
    pub qs: [[u8; 8]; 4],
}

impl Block for Nvfp4 {
    const DTYPE: DType = DType::NVFP4;
    const ELEMS: usize = 64;
}

impl Nvfp4 {
    /// Values that share a scale.
    pub const GROUP: usize = 16;
}

/// The largest scale, 448.
const LAST: u8 = 0x7e;

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
    decode_blocks(bytes, out, |block: &Nvfp4, out: &mut [f32; Nvfp4::ELEMS]| {
        let subs = block.scales.iter().zip(&block.qs);
        for (out, (&scale, qs)) in out.as_chunks_mut::<16>().0.iter_mut().zip(subs) {
            let half = half_scale(scale);
            for (j, byte) in qs.iter().enumerate() {
                out[j] = half * DOUBLED[usize::from(byte & 15)];
                out[j + 8] = half * DOUBLED[usize::from(byte >> 4)];
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Nvfp4::ELEMS }>| {
        let mut block = Nvfp4::zeroed();
        for (k, part) in part.split::<4, 16>().into_iter().enumerate() {
            block.scales[k] = best_scale(part)?;
            let inv = inverse(2.0 * half_scale(block.scales[k]));
            let q = codes(part.x, inv);
            block.qs[k] = std::array::from_fn(|j| q[j] | q[j + 8] << 4);
        }
        Some(block)
    })
}

/// The scale of the least squared error among the plain one, slightly smaller ones, and larger ones up to where the
/// largest value falls on 4, where the codes are denser. `None` if no scale reaches the largest value.
fn best_scale(part: Part<16>) -> Option<u8> {
    let target = extreme(part.x).abs() / E2M1_MAX;
    let last = half_scale(LAST) * 2.0;
    if target > last * (1.0 + 1.0 / 32.0) {
        return None;
    }
    let plain = nearest_scale(target);
    let mut best = (plain, error::<E2m1, _>(part, 2.0 * half_scale(plain)));
    for byte in (plain.max(3) - 2..=plain + 6).filter(|&b| b != plain && b <= LAST) {
        let error = error::<E2m1, _>(part, 2.0 * half_scale(byte));
        if error < best.1 {
            best = (byte, error);
        }
    }
    Some(best.0)
}

/// The byte of the scale nearest to a value that is not negative.
fn nearest_scale(target: f32) -> u8 {
    let (mut low, mut high) = (0, LAST);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if 2.0 * half_scale(middle) <= target {
            low = middle;
        } else {
            high = middle;
        }
    }
    if target - 2.0 * half_scale(low) <= 2.0 * half_scale(high) - target { low } else { high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_round_trip() {
        assert_eq!(
            [0, 1, 7, 8, 0x38, LAST].map(|b| 2.0 * half_scale(b)),
            [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0, 1.0, 448.0]
        );
        for byte in 0..=LAST {
            assert_eq!(nearest_scale(2.0 * half_scale(byte)), byte);
        }
    }
}
