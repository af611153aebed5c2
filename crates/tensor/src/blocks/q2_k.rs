//! `q2_k`: 256 values in 84 bytes, 16 sub-blocks of 16 values.

use bytemuck::{Pod, Zeroable};

use super::nested_affine::nested_affine;
use super::search::Part;
use super::{Block, decode_blocks, encode_blocks, f16_bytes, read_f16};
use crate::{DType, TensorError};

/// 256 values, 16 sub-blocks of 16: `d · scale · code − dmin · min`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q2K {
    /// A byte per sub-block: scale in the low nibble, minimum in the high one.
    pub scales: [u8; 16],
    /// Value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l.
    pub qs: [u8; 64],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minima, f16.
    pub dmin: [u8; 2],
}

impl Block for Q2K {
    const DTYPE: DType = DType::Q2K;
    const ELEMS: usize = 256;
}

const HI: f32 = 3.0;
const STEPS: f32 = 15.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q2K, out: &mut [f32; Q2K::ELEMS]| {
        let (d, dmin) = (read_f16(block.d), read_f16(block.dmin));
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block.scales[i] & 15);
            let min = dmin * f32::from(block.scales[i] >> 4);
            let qs = &block.qs[i / 8 * 32 + i % 2 * 16..][..16];
            for (o, q) in out.iter_mut().zip(qs) {
                *o = scale * f32::from(q >> (i % 8 / 2 * 2) & 3) - min;
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q2K::ELEMS }>| {
        let parts = part.split::<16, 16>();
        let best = nested_affine(&parts, HI, STEPS)?;
        let mut block = Q2K { d: f16_bytes(best.d), dmin: f16_bytes(best.dmin), ..Q2K::zeroed() };
        for (i, part) in parts.iter().enumerate() {
            block.scales[i] = best.scales[i] | best.mins[i] << 4;
            let at = i / 8 * 32 + i % 2 * 16;
            for (l, q) in best.line(i).codes(part.x, HI).into_iter().enumerate() {
                block.qs[at + l] |= q << (i % 8 / 2 * 2);
            }
        }
        Some(block)
    })
}
