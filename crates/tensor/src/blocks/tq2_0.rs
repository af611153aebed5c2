//! `tq2_0`: 256 values in 66 bytes, two bits each.

use bytemuck::{Pod, Zeroable};

use super::{Block, decode_blocks, read_f16};
use crate::DType;

/// 256 values: `d · (code − 1)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Tq2_0 {
    /// Value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l.
    pub qs: [u8; 64],
    /// Scale, f16.
    pub d: [u8; 2],
}

impl Block for Tq2_0 {
    const DTYPE: DType = DType::TQ2_0;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Tq2_0, out: &mut [f32; Tq2_0::ELEMS]| {
        let d = read_f16(block.d);
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (o, q) in out.iter_mut().zip(&block.qs[i / 4 * 32..][..32]) {
                *o = d * (f32::from(q >> (i % 4 * 2) & 3) - 1.0);
            }
        }
    });
}
