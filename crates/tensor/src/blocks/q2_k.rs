//! `q2_k`: 256 values in 84 bytes, 16 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | a byte per sub-block: scale in the low nibble, minimum in the high one |
//! | 16..80 | `qs`: value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l |
//! | 80..82, 82..84 | `d`, `dmin`, f16 |
//!
//! value = d · scale · code − dmin · min

use super::nested_affine::nested_affine;
use super::search::Part;
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 84);
const HI: f32 = 3.0;
const STEPS: f32 = 15.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block[i] & 15);
            let min = dmin * f32::from(block[i] >> 4);
            let qs = &block[16 + i / 8 * 32 + i % 2 * 16..][..16];
            for (o, q) in out.iter_mut().zip(qs) {
                *o = scale * f32::from(q >> (i % 8 / 2 * 2) & 3) - min;
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q2K, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let parts = part.split::<16, 16>();
        let best = nested_affine(&parts, HI, STEPS)?;
        block.fill(0);
        for (i, part) in parts.iter().enumerate() {
            block[i] = best.scales[i] | best.mins[i] << 4;
            let at = 16 + i / 8 * 32 + i % 2 * 16;
            for (l, q) in best.line(i).codes(part.x, HI).into_iter().enumerate() {
                block[at + l] |= q << (i % 8 / 2 * 2);
            }
        }
        write_f16(block, 80, best.d);
        write_f16(block, 82, best.dmin);
        Some(())
    })
}
