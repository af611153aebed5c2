//! `q3_k`: 256 values in 110 bytes, 16 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | `hmask`: bit 4n + p of byte l is the third bit of value 128·n + 32·p + l |
//! | 32..96 | `qs`: value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l |
//! | 96..108 | sixteen scales of six bits, see [`scale`] |
//! | 108..110 | `d`, f16 |
//!
//! value = d · (scale − 32) · (code − 4)

use super::nested::nested;
use super::search::{Part, Whole, codes, inverse};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 110);
type Codes = Whole<-4, 3>;

/// Sub-block `i`'s scale: a nibble of the first eight bytes and two bits of the last four.
fn scale(packed: &[u8], i: usize) -> u8 {
    packed[i % 8] >> (i / 8 * 4) & 15 | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4
}

/// The inverse of [`scale`], into bytes that were zero.
fn put_scale(packed: &mut [u8], i: usize, scale: u8) {
    packed[i % 8] |= (scale & 15) << (i / 8 * 4);
    packed[8 + i % 4] |= (scale >> 4) << (i / 4 * 2);
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 108);
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * (f32::from(scale(&block[96..108], i)) - 32.0);
            let at = i % 2 * 16;
            let (low, high) = (&block[32 + i / 8 * 32 + at..][..16], &block[at..][..16]);
            for ((o, low), high) in out.iter_mut().zip(low).zip(high) {
                let code = low >> (i % 8 / 2 * 2) & 3 | (high >> (i / 2) & 1) << 2;
                *o = scale * (f32::from(code) - 4.0);
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q3K, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let parts = part.split::<16, 16>();
        let best = nested::<Codes, 16, 16>(&parts, (-32.0, 31.0))?;
        block.fill(0);
        for (i, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
            put_scale(&mut block[96..108], i, (sub + 32) as u8);
            let inv = inverse(best.d * f32::from(sub));
            let at = i % 2 * 16;
            for (l, q) in codes::<Codes, _>(part.x, inv, 4.0).into_iter().enumerate() {
                block[32 + i / 8 * 32 + at + l] |= (q & 3) << (i % 8 / 2 * 2);
                block[at + l] |= (q >> 2) << (i / 2);
            }
        }
        write_f16(block, 108, best.d);
        Some(())
    })
}
