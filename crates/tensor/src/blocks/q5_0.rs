//! `q5_0`: 32 values in 22 bytes.

use bytemuck::{Pod, Zeroable};

use super::search::{Part, Whole, codes, inverse, symmetric_f16};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, five_bits, read_f16, split_five_bits};
use crate::{DType, TensorError};

/// 32 values: `d · (code − 16)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// u32: bit i is the fifth bit of value i's code.
    pub qh: [u8; 4],
    /// The low nibble of byte j belongs to value j, the high nibble to value j + 16.
    pub qs: [u8; 16],
}

impl Block for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const ELEMS: usize = 32;
}

impl Q5_0 {
    /// The codes in order.
    #[inline(always)]
    pub fn codes(&self) -> [u8; 32] {
        five_bits(self.qh, &self.qs)
    }
}

type Codes = Whole<-16, 15>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q5_0, out: &mut [f32; Q5_0::ELEMS]| {
        let d = read_f16(block.d);
        for (o, &code) in out.iter_mut().zip(&block.codes()) {
            *o = d * (f32::from(code) - 16.0);
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q5_0::ELEMS }>| {
        let d = symmetric_f16::<Codes, _>(part)?;
        let (qh, qs) = split_five_bits(&codes::<Codes, _>(part.x, inverse(d), 16.0));
        Some(Q5_0 { d: f16_bytes(d), qh, qs })
    })
}
