//! `iq2_s`: 256 values in 82 bytes, 16 sub-blocks of 16 values in 2 groups of 8.

use bytemuck::{Pod, Zeroable};

use super::lattice::put_iq2;
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 16 sub-blocks of 16 values in 2 groups of 8: `± d · (scale + 1/2) / 4 · coordinate`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq2S {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Low eight bits of each group's point.
    pub qs: [u8; 32],
    /// A byte per group.
    pub signs: [u8; 32],
    /// Two high bits of each group's point, four groups to a byte.
    pub qh: [u8; 8],
    /// A nibble per sub-block, the low one first.
    pub scales: [u8; 8],
}

impl Block for Iq2S {
    const DTYPE: DType = DType::IQ2_S;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq2S, out: &mut [f32; Iq2S::ELEMS]| {
        let d = read_f16(block.d);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block.scales[group / 4] >> (group / 2 % 2 * 4) & 15;
            let scale = d * (0.5 + f32::from(step)) * 0.25;
            let high = usize::from(block.qh[group / 4] >> (group % 4 * 2) & 3);
            let point = grids::IQ2_S[usize::from(block.qs[group]) | high << 8];
            put_iq2(point, scale, block.signs[group], out);
        }
    });
}
