//! `q4_0`: 32 values in 18 bytes.

use bytemuck::{Pod, Zeroable};

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, join_nibbles, nibbles, read_f16};
use crate::{DType, TensorError};

/// 32 values: `d · (code − 8)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// The low nibble of byte j is the code of value j, the high nibble of value j + 16.
    pub qs: [u8; 16],
}

impl Block for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const ELEMS: usize = 32;
}

type Codes = Whole<-8, 7>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q4_0, out: &mut [f32; Q4_0::ELEMS]| {
        let d = read_f16(block.d);
        for (o, &code) in out.iter_mut().zip(&nibbles(&block.qs)) {
            *o = d * (f32::from(code) - 8.0);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q4_0::ELEMS }>| {
        let d = symmetric_f16::<Codes, _>(part)?;
        let codes = codes::<Codes, _>(part.x, inverse(d), 8.0);
        Some(Q4_0 { d: f16_bytes(d), qs: join_nibbles(&codes) })
    })
}
