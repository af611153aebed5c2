//! `q4_k`: 256 values in 144 bytes, 8 sub-blocks of 32 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `dmin`, f16 |
//! | 4..16 | eight scales and eight minima of six bits each, see `six_bit.rs` |
//! | 16..144 | `qs`: sub-blocks 2i and 2i + 1 are the low and high nibbles of the 32 bytes from 32·i |
//!
//! value = d · scale · code − dmin · min

use super::nested_affine::nested_affine;
use super::search::Part;
use super::{decode_blocks, encode_blocks, read_f16, six_bit, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 144);
const HI: f32 = 15.0;
const STEPS: f32 = 63.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = six_bit::scale_and_min(&block[4..16], j);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let qs = &block[16 + j / 2 * 32..][..32];
            for (o, q) in out.iter_mut().zip(qs) {
                *o = scale * f32::from(q >> (j % 2 * 4) & 15) - min;
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q4K, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let parts = part.split::<8, 32>();
        let best = nested_affine(&parts, HI, STEPS)?;
        block.fill(0);
        write_f16(block, 0, best.d);
        write_f16(block, 2, best.dmin);
        six_bit::pack(&best.scales, &best.mins, &mut block[4..16]);
        for (j, part) in parts.iter().enumerate() {
            for (l, q) in best.line(j).codes(part.x, HI).into_iter().enumerate() {
                block[16 + j / 2 * 32 + l] |= q << (j % 2 * 4);
            }
        }
        Some(())
    })
}
