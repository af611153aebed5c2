//! `q8_0`: 32 values in 34 bytes.

use bytemuck::{Pod, Zeroable};

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, read_f16};
use crate::{DType, TensorError};

/// 32 values: `d · code`. The encoder leaves −128 unused, so that a code can always be negated.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Codes, i8.
    pub qs: [u8; 32],
}

impl Block for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const ELEMS: usize = 32;
}

type Codes = Whole<-127, 127>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q8_0, out: &mut [f32; Q8_0::ELEMS]| {
        let d = read_f16(block.d);
        for (o, &q) in out.iter_mut().zip(&block.qs) {
            *o = d * f32::from(q as i8);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q8_0::ELEMS }>| {
        let d = symmetric_f16::<Codes, _>(part)?;
        Some(Q8_0 { d: f16_bytes(d), qs: codes::<Codes, _>(part.x, inverse(d), 0.0) })
    })
}
