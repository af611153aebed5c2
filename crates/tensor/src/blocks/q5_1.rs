//! `q5_1`: 32 values in 24 bytes.

use bytemuck::{Pod, Zeroable};

use super::affine::search_f16;
use super::search::Part;
use super::{Block, decode_blocks, encode_blocks, f16_bytes, five_bits, read_f16, split_five_bits};
use crate::{DType, TensorError};

/// 32 values: `d · code + m`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Value of code 0, f16.
    pub m: [u8; 2],
    /// u32: bit i is the fifth bit of value i's code.
    pub qh: [u8; 4],
    /// The low nibble of byte j belongs to value j, the high nibble to value j + 16.
    pub qs: [u8; 16],
}

impl Block for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const ELEMS: usize = 32;
}

impl Q5_1 {
    /// The codes in order.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 32] {
        five_bits(self.qh, &self.qs)
    }
}

const HI: f32 = 31.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q5_1, out: &mut [f32; Q5_1::ELEMS]| {
        let (d, m) = (read_f16(block.d), read_f16(block.m));
        for (o, &code) in out.iter_mut().zip(&block.codes()) {
            *o = d * f32::from(code) + m;
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q5_1::ELEMS }>| {
        let line = search_f16(part, HI)?;
        let (qh, qs) = split_five_bits(&line.codes(part.x, HI));
        Some(Q5_1 { d: f16_bytes(line.scale), m: f16_bytes(line.low), qh, qs })
    })
}
