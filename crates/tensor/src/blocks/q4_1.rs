//! `q4_1`: 32 values in 20 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `m`, f16 |
//! | 4..20 | `qs`: the low nibble of byte j is the code of value j, the high nibble of value j + 16 |
//!
//! value = d · code + m

use super::affine::search_f16;
use super::search::Part;
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 20);
const HI: f32 = 15.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, m) = (read_f16(block, 0), read_f16(block, 2));
        for j in 0..16 {
            let byte = block[4 + j];
            out[j] = d * f32::from(byte & 15) + m;
            out[j + 16] = d * f32::from(byte >> 4) + m;
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q4_1, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let line = search_f16(part, HI)?;
        let q = line.codes(part.x, HI);
        write_f16(block, 0, line.scale);
        write_f16(block, 2, line.low);
        for j in 0..16 {
            block[4 + j] = q[j] | q[j + 16] << 4;
        }
        Some(())
    })
}
