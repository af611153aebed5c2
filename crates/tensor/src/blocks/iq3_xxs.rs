//! `iq3_xxs`: 256 values in 98 bytes, 8 sub-blocks of 32 values in 4 groups of 8, each of two points.

use bytemuck::{Pod, Zeroable};

use super::lattice::{even_signs, put_iq3_xxs};
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 8 sub-blocks of 32 values in 4 groups of 8, each of two points: `± d · (scale + 1/2) / 2 ·
/// coordinate`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq3Xxs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// One point (four values) per byte.
    pub qs: [u8; 64],
    /// A u32 per sub-block: seven sign bits per group and the scale in its top nibble.
    pub signs: [[u8; 4]; 8],
}

impl Block for Iq3Xxs {
    const DTYPE: DType = DType::IQ3_XXS;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq3Xxs, out: &mut [f32; Iq3Xxs::ELEMS]| {
        let d = read_f16(block.d);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let packed = u32::from_le_bytes(block.signs[group / 4]);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
            let signs = even_signs((packed >> (group % 4 * 7)) as u8);
            let points = [0, 1].map(|k| grids::IQ3_XXS[usize::from(block.qs[2 * group + k])]);
            put_iq3_xxs(points, scale, signs, out);
        }
    });
}
