//! `q5_k`: 256 values in 176 bytes, 8 sub-blocks of 32 values.

use bytemuck::{Pod, Zeroable};

use super::nested_affine::nested_affine;
use super::search::Part;
use super::{Block, decode_blocks, encode_blocks, f16_bytes, pack_scales_and_mins, read_f16, scale_and_min};
use crate::{DType, TensorError};

/// 256 values, 8 sub-blocks of 32: `d · scale · code − dmin · min`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
    /// Eight scales and eight minima of six bits each, see [`scale_and_min`](super::scale_and_min).
    pub scales: [u8; 12],
    /// Bit j of byte l is the fifth bit of sub-block j's value l.
    pub qh: [u8; 32],
    /// Sub-blocks 2i and 2i + 1 are the low and high nibbles of the 32 bytes from 32·i.
    pub qs: [u8; 128],
}

impl Block for Q5K {
    const DTYPE: DType = DType::Q5K;
    const ELEMS: usize = 256;
}

impl Q5K {
    /// The codes of sub-block `j`.
    #[inline(always)]
    pub fn codes(&self, j: usize) -> [u8; 32] {
        let low: &[u8; 32] = &self.qs.as_chunks().0[j / 2];
        std::array::from_fn(|l| low[l] >> (j % 2 * 4) & 15 | (self.qh[l] >> j & 1) << 4)
    }
}

const HI: f32 = 31.0;
const STEPS: f32 = 63.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q5K, out: &mut [f32; Q5K::ELEMS]| {
        let (d, dmin) = (read_f16(block.d), read_f16(block.dmin));
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scale_and_min(&block.scales, j);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            for (o, &code) in out.iter_mut().zip(&block.codes(j)) {
                *o = scale * f32::from(code) - min;
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q5K::ELEMS }>| {
        let parts = part.split::<8, 32>();
        let best = nested_affine(&parts, HI, STEPS)?;
        let scales = pack_scales_and_mins(&best.scales, &best.mins);
        let mut block = Q5K { d: f16_bytes(best.d), dmin: f16_bytes(best.dmin), scales, ..Q5K::zeroed() };
        for (j, part) in parts.iter().enumerate() {
            for (l, q) in best.line(j).codes(part.x, HI).into_iter().enumerate() {
                block.qs[j / 2 * 32 + l] |= (q & 15) << (j % 2 * 4);
                block.qh[l] |= (q >> 4) << j;
            }
        }
        Some(block)
    })
}
