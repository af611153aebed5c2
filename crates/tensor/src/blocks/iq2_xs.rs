//! `iq2_xs`: 256 values in 74 bytes, 16 sub-blocks of 16 values in 2 groups of 8.

use bytemuck::{Pod, Zeroable};

use super::lattice::{even_signs, put_iq2};
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 16 sub-blocks of 16 values in 2 groups of 8: `± d · (scale + 1/2) / 4 · coordinate`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2Xs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// A u16 per group: nine bits of point and seven sign bits.
    pub qs: [[u8; 2]; 32],
    /// A nibble per sub-block, the low one first.
    pub scales: [u8; 8],
}

impl Block for Iq2Xs {
    const DTYPE: DType = DType::IQ2_XS;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq2Xs, out: &mut [f32; Iq2Xs::ELEMS]| {
        let d = read_f16(block.d);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block.scales[group / 4] >> (group / 2 % 2 * 4) & 15;
            let scale = d * (0.5 + f32::from(step)) * 0.25;
            let packed = u16::from_le_bytes(block.qs[group]);
            let point = grids::IQ2_XS[usize::from(packed & 511)];
            put_iq2(point, scale, even_signs((packed >> 9) as u8), out);
        }
    });
}
