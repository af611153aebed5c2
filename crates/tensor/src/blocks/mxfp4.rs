//! `mxfp4`: 32 values in 17 bytes.

use bytemuck::{Pod, Zeroable};

use super::fp4::{DOUBLED, E2m1, codes};
use super::search::{Part, error, extreme, inverse};
use super::{Block, decode_blocks, encode_blocks, join_nibbles, nibbles};
use crate::{DType, TensorError};

/// 32 values: `2^(e − 127) · e2m1(code)`. No `e` means NaN; the largest overflows to infinity.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Mxfp4 {
    /// Exponent of the scale, 127 added.
    pub e: u8,
    /// The low nibble of byte j is the `e2m1` code of value j, the high nibble of value j + 16.
    pub qs: [u8; 16],
}

impl Block for Mxfp4 {
    const DTYPE: DType = DType::MXFP4;
    const ELEMS: usize = 32;
}

/// Half the scale, for the doubled codes: 2^(e − 128), which the two smallest store as subnormals.
fn half_scale(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Mxfp4, out: &mut [f32; Mxfp4::ELEMS]| {
        let half = half_scale(block.e);
        for (o, &code) in out.iter_mut().zip(&nibbles(&block.qs)) {
            *o = half * DOUBLED[usize::from(code)];
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Mxfp4::ELEMS }>| {
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
        Some(Mxfp4 { e: best.0, qs: join_nibbles(&codes(part.x, inv)) })
    })
}
