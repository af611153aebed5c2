//! `q4_1`: 32 values in 20 bytes.

use bytemuck::{Pod, Zeroable};

use super::affine::search_f16;
use super::search::Part;
use super::{Block, decode_blocks, encode_blocks, f16_bytes, join_nibbles, nibbles, read_f16};
use crate::{DType, TensorError};

/// 32 values: `d · code + m`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Value of code 0, f16.
    pub m: [u8; 2],
    /// The low nibble of byte j is the code of value j, the high nibble of value j + 16.
    pub qs: [u8; 16],
}

impl Block for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const ELEMS: usize = 32;
}

impl Q4_1 {
    /// The codes in order.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 32] {
        nibbles(&self.qs)
    }
}

const HI: f32 = 15.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q4_1, out: &mut [f32; Q4_1::ELEMS]| {
        let (d, m) = (read_f16(block.d), read_f16(block.m));
        for (o, &code) in out.iter_mut().zip(&block.codes()) {
            *o = d * f32::from(code) + m;
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q4_1::ELEMS }>| {
        let line = search_f16(part, HI)?;
        let qs = join_nibbles(&line.codes(part.x, HI));
        Some(Q4_1 { d: f16_bytes(line.scale), m: f16_bytes(line.low), qs })
    })
}
