//! `iq1_m`: 256 values in 56 bytes, 16 sub-blocks of 16 values in 2 groups of 8.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::lattice::put_iq1;
use super::{Block, decode_blocks, grids};
use crate::DType;

/// 256 values, 16 sub-blocks of 16 values in 2 groups of 8: `d · (2·scale + 1) · (coordinate − 1 ± 1/8)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq1M {
    /// Low eight bits of each group's point.
    pub qs: [u8; 32],
    /// A nibble per group; bits 0..3 are the high bits of its point, 3 the shift's sign.
    pub qh: [u8; 16],
    /// Four u16; bits 3k..3k+3 of the i-th are the scale of sub-block 4i + k, its top nibble is nibble i
    /// of `d`, f16.
    pub scales: [[u8; 2]; 4],
}

impl Block for Iq1M {
    const DTYPE: DType = DType::IQ1_M;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq1M, out: &mut [f32; Iq1M::ELEMS]| {
        let packed = block.scales.map(u16::from_le_bytes);
        let bits = (0..4).fold(0, |bits, i| bits | packed[i] >> 12 << (4 * i));
        let d = f16::from_bits(bits).to_f32();
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let sub = group / 2;
            let scale = d * f32::from(2 * (packed[sub / 4] >> (sub % 4 * 3) & 7) + 1);
            let high = block.qh[group / 2] >> (group % 2 * 4) & 15;
            let point = u16::from(block.qs[group]) | u16::from(high & 7) << 8;
            put_iq1(grids::IQ1[usize::from(point)], scale, high >> 3 == 1, out);
        }
    });
}
