//! `q4_0`: 32 values in 18 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: the low nibble of byte j is the code of value j, the high nibble of value j + 16 |
//!
//! value = d · (code − 8)

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 18);
type Codes = Whole<-8, 7>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for j in 0..16 {
            let byte = block[2 + j];
            out[j] = d * (f32::from(byte & 15) - 8.0);
            out[j + 16] = d * (f32::from(byte >> 4) - 8.0);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q4_0, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let d = symmetric_f16::<Codes, _>(part)?;
        let q = codes::<Codes, _>(part.x, inverse(d), 8.0);
        write_f16(block, 0, d);
        for j in 0..16 {
            block[2 + j] = q[j] | q[j + 16] << 4;
        }
        Some(())
    })
}
