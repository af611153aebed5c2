//! `iq1_s`: 256 values in 50 bytes, 8 sub-blocks of 32 values in 4 groups of 8.

use bytemuck::{Pod, Zeroable};

use super::lattice::put_iq1;
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 8 sub-blocks of 32 values in 4 groups of 8: `d · (2·scale + 1) · (coordinate − 1 ± 1/8)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq1S {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Low eight bits of each group's point.
    pub qs: [u8; 32],
    /// A u16 per sub-block; bits 3g..3g+3 are the high bits of group g's point, 12..15 the scale, 15 the
    /// shift's sign.
    pub qh: [[u8; 2]; 8],
}

impl Block for Iq1S {
    const DTYPE: DType = DType::IQ1_S;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq1S, out: &mut [f32; Iq1S::ELEMS]| {
        let d = read_f16(block.d);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = u16::from_le_bytes(block.qh[group / 4]);
            let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
            let point = u16::from(block.qs[group]) | (high >> (group % 4 * 3) & 7) << 8;
            put_iq1(grids::IQ1[usize::from(point)], scale, high >> 15 == 1, out);
        }
    });
}
