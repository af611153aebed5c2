//! `iq2_xxs`: 256 values in 66 bytes, 8 sub-blocks of 32 values in 4 groups of 8.

use bytemuck::{Pod, Zeroable};

use super::lattice::{even_signs, put_iq2};
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 8 sub-blocks of 32 values in 4 groups of 8: `± d · (scale + 1/2) / 4 · coordinate`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2Xxs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// The sub-blocks.
    pub subs: [Iq2XxsSub; 8],
}

/// 32 values of an [`Iq2Xxs`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2XxsSub {
    /// A point per group.
    pub points: [u8; 4],
    /// u32: seven sign bits per group, and the scale in its top nibble.
    pub signs: [u8; 4],
}

impl Block for Iq2Xxs {
    const DTYPE: DType = DType::IQ2_XXS;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq2Xxs, out: &mut [f32; Iq2Xxs::ELEMS]| {
        let d = read_f16(block.d);
        for (sub, out) in block.subs.iter().zip(out.as_chunks_mut::<32>().0) {
            let packed = u32::from_le_bytes(sub.signs);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.25;
            for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let point = grids::IQ2_XXS[usize::from(sub.points[group])];
                put_iq2(point, scale, even_signs((packed >> (7 * group)) as u8), out);
            }
        }
    });
}
