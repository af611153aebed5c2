//! `q8_0`: 32 values in 34 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: 32 codes, i8 |
//!
//! value = d · code. The encoder leaves −128 unused, so that a code can always be negated.

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 34);
type Codes = Whole<-127, 127>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (o, &q) in out.iter_mut().zip(&block[2..]) {
            *o = d * f32::from(q as i8);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q8_0, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let d = symmetric_f16::<Codes, _>(part)?;
        write_f16(block, 0, d);
        block[2..].copy_from_slice(&codes::<Codes, _>(part.x, inverse(d), 0.0));
        Some(())
    })
}
