//! `q3_k`: 256 values in 110 bytes, 16 sub-blocks of 16 values.

use bytemuck::{Pod, Zeroable};

use super::nested::nested;
use super::search::{Part, Whole, codes, inverse};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, read_f16};
use crate::{DType, TensorError};

/// 256 values, 16 sub-blocks of 16: `d · (scale − 32) · (code − 4)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q3K {
    /// Bit 4n + p of byte l is the third bit of value 128·n + 32·p + l.
    pub hmask: [u8; 32],
    /// Value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l.
    pub qs: [u8; 64],
    /// Sixteen scales of six bits: sub-block i's has a nibble of the first eight bytes and two bits of
    /// the last four.
    pub scales: [u8; 12],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

impl Block for Q3K {
    const DTYPE: DType = DType::Q3K;
    const ELEMS: usize = 256;
}

type Codes = Whole<-4, 3>;

/// Sub-block `i`'s scale: a nibble of the first eight bytes and two bits of the last four.
fn scale(packed: &[u8; 12], i: usize) -> u8 {
    packed[i % 8] >> (i / 8 * 4) & 15 | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4
}

/// The inverse of [`scale`], into bytes that were zero.
fn put_scale(packed: &mut [u8; 12], i: usize, scale: u8) {
    packed[i % 8] |= (scale & 15) << (i / 8 * 4);
    packed[8 + i % 4] |= (scale >> 4) << (i / 4 * 2);
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q3K, out: &mut [f32; Q3K::ELEMS]| {
        let d = read_f16(block.d);
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * (f32::from(scale(&block.scales, i)) - 32.0);
            let at = i % 2 * 16;
            let (low, high) = (&block.qs[i / 8 * 32 + at..][..16], &block.hmask[at..][..16]);
            for ((o, low), high) in out.iter_mut().zip(low).zip(high) {
                let code = low >> (i % 8 / 2 * 2) & 3 | (high >> (i / 2) & 1) << 2;
                *o = scale * (f32::from(code) - 4.0);
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q3K::ELEMS }>| {
        let parts = part.split::<16, 16>();
        let best = nested::<Codes, 16, 16>(&parts, (-32.0, 31.0))?;
        let mut block = Q3K { d: f16_bytes(best.d), ..Q3K::zeroed() };
        for (i, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
            put_scale(&mut block.scales, i, (sub + 32) as u8);
            let inv = inverse(best.d * f32::from(sub));
            let at = i % 2 * 16;
            for (l, q) in codes::<Codes, _>(part.x, inv, 4.0).into_iter().enumerate() {
                block.qs[i / 8 * 32 + at + l] |= (q & 3) << (i % 8 / 2 * 2);
                block.hmask[at + l] |= (q >> 2) << (i / 2);
            }
        }
        Some(block)
    })
}
