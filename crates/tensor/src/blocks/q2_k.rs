//! `q2_k`: 256 values in 84 bytes, 16 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | a byte per sub-block: scale in the low nibble, minimum in the high one |
//! | 16..80 | `qs`: value 128·n + 32·p + l has bits 2p..2p+2 of byte 32·n + l |
//! | 80..82, 82..84 | `d`, `dmin`, f16 |
//!
//! value = d · scale · code − dmin · min

use super::{decode_blocks, read_f16};

pub(crate) const SIZE: (usize, usize) = (256, 84);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
        for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block[i] & 15);
            let min = dmin * f32::from(block[i] >> 4);
            let qs = &block[16 + i / 8 * 32 + i % 2 * 16..][..16];
            for (o, q) in out.iter_mut().zip(qs) {
                *o = scale * f32::from(q >> (i % 8 / 2 * 2) & 3) - min;
            }
        }
    });
}
