//! `iq3_s`: 256 values in 110 bytes, 8 sub-blocks of 32 values in 4 groups of 8, each of two points.

use bytemuck::{Pod, Zeroable};

use super::lattice::put_iq3_s;
use super::{Block, decode_blocks, grids, read_f16};
use crate::DType;

/// 256 values, 8 sub-blocks of 32 values in 4 groups of 8, each of two points: `± d · (2·scale + 1) ·
/// (2·coordinate + 1)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq3S {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Low eight bits of one point (four values) per byte.
    pub qs: [u8; 64],
    /// The ninth bit of eight points per byte.
    pub qh: [u8; 8],
    /// A byte per group.
    pub signs: [u8; 32],
    /// A nibble per sub-block, the low one first.
    pub scales: [u8; 4],
}

impl Block for Iq3S {
    const DTYPE: DType = DType::IQ3_S;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq3S, out: &mut [f32; Iq3S::ELEMS]| {
        let d = read_f16(block.d);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block.scales[group / 8] >> (group / 4 % 2 * 4) & 15;
            let scale = d * f32::from(2 * step + 1);
            let points = [0, 1].map(|k| {
                let i = 2 * group + k;
                let high = usize::from(block.qh[i / 8] >> (i % 8) & 1);
                grids::IQ3_S[usize::from(block.qs[i]) | high << 8]
            });
            put_iq3_s(points, scale, block.signs[group], out);
        }
    });
}
