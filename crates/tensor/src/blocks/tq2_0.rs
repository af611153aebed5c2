//! `tq2_0`: 256 values in 66 bytes, two bits each.
//!
//! | bytes | field |
//! |---|---|
//! | 0..64 | `qs`: value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l |
//! | 64..66 | `d`, f16 |
//!
//! value = d · (code − 1)

use super::{decode_blocks, read_f16};

pub(crate) const SIZE: (usize, usize) = (256, 66);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 64);
        for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (o, q) in out.iter_mut().zip(&block[i / 4 * 32..][..32]) {
                *o = d * (f32::from(q >> (i % 4 * 2) & 3) - 1.0);
            }
        }
    });
}
