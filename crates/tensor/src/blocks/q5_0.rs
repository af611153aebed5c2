//! `q5_0`: 32 values in 22 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..6 | `qh`, u32: bit i is the fifth bit of value i's code |
//! | 6..22 | `qs`: the low nibble of byte j belongs to value j, the high nibble to value j + 16 |
//!
//! value = d · (code − 16)

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{decode_blocks, encode_blocks, read_f16, write_f16, write_five_bits};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 22);
type Codes = Whole<-16, 15>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let value = |low: u8, i: usize| d * ((u32::from(low) | (high >> i & 1) << 4) as f32 - 16.0);
        for j in 0..16 {
            let byte = block[6 + j];
            out[j] = value(byte & 15, j);
            out[j + 16] = value(byte >> 4, j + 16);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q5_0, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let d = symmetric_f16::<Codes, _>(part)?;
        let q = codes::<Codes, _>(part.x, inverse(d), 16.0);
        write_f16(block, 0, d);
        write_five_bits(block, 2, &q);
        Some(())
    })
}
