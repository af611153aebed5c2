//! `q6_k`: 256 values in 210 bytes, 16 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | `ql`: low four bits of the codes |
//! | 128..192 | `qh`: high two bits of the codes |
//! | 192..208 | `sc`: one i8 scale per sub-block |
//! | 208..210 | `d`, f16 |
//!
//! Half n (128 values) uses ql[64n..], qh[32n..], sc[8n..]. Its value 32·p + l (p 0..4, l 0..32) takes a
//! nibble of ql[l + 32·(p mod 2)], the low one for p < 2, and bits 2p..2p+2 of qh[l].
//!
//! value = d · sc · (code − 32)

use super::nested::nested;
use super::search::{Part, Whole, codes, inverse};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 210);
type Codes = Whole<-32, 31>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 208);
        for (half, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (ql, qh) = (&block[64 * half..64 * half + 64], &block[128 + 32 * half..160 + 32 * half]);
            let scales = &block[192 + 8 * half..200 + 8 * half];
            for (p, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (l, o) in out.iter_mut().enumerate() {
                    let low = ql[l + 32 * (p % 2)] >> (4 * (p / 2)) & 15;
                    let high = qh[l] >> (2 * p) & 3;
                    let scale = d * f32::from(scales[2 * p + l / 16] as i8);
                    *o = scale * (f32::from(low | high << 4) - 32.0);
                }
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q6K, values, importance, out, |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
        let parts = part.split::<16, 16>();
        let best = nested::<Codes, 16, 16>(&parts, (-128.0, 127.0))?;
        block.fill(0);
        for (i, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
            let inv = inverse(best.d * f32::from(sub));
            let (half, p) = (i / 8, i % 8 / 2);
            for (k, q) in codes::<Codes, _>(part.x, inv, 32.0).into_iter().enumerate() {
                let l = i % 2 * 16 + k;
                block[64 * half + l + 32 * (p % 2)] |= (q & 15) << (4 * (p / 2));
                block[128 + 32 * half + l] |= (q >> 4) << (2 * p);
            }
            block[192 + i] = sub as u8;
        }
        write_f16(block, 208, best.d);
        Some(())
    })
}
