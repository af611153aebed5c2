//! `q5_1`: 32 values in 24 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `m`, f16 |
//! | 4..8 | `qh`, u32: bit i is the fifth bit of value i's code |
//! | 8..24 | `qs`: the low nibble of byte j belongs to value j, the high nibble to value j + 16 |
//!
//! value = d · code + m

use super::affine::search_f16;
use super::search::Part;
use super::{decode_blocks, encode_blocks, read_f16, read_u32, write_f16, write_five_bits};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 24);
const HI: f32 = 31.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, m) = (read_f16(block, 0), read_f16(block, 2));
        let high = read_u32(block, 4);
        let value = |low: u8, i: usize| d * (u32::from(low) | (high >> i & 1) << 4) as f32 + m;
        for j in 0..16 {
            let byte = block[8 + j];
            out[j] = value(byte & 15, j);
            out[j + 16] = value(byte >> 4, j + 16);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q5_1, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let line = search_f16(part, HI)?;
        write_f16(block, 0, line.scale);
        write_f16(block, 2, line.low);
        write_five_bits(block, 4, &line.codes(part.x, HI));
        Some(())
    })
}
