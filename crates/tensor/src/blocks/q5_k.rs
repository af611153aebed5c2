//! `q5_k`: 256 values in 176 bytes, 8 sub-blocks of 32 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `dmin`, f16 |
//! | 4..16 | eight scales and eight minima of six bits each, see `six_bit.rs` |
//! | 16..48 | `qh`: bit j of byte l is the fifth bit of sub-block j's value l |
//! | 48..176 | `qs`: sub-blocks 2i and 2i + 1 are the low and high nibbles of the 32 bytes from 32·i |
//!
//! value = d · scale · code − dmin · min

use super::{decode_blocks, read_f16, six_bit};

pub(crate) const SIZE: (usize, usize) = (256, 176);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = six_bit::scale_and_min(&block[4..16], j);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let (high, low) = (&block[16..48], &block[48 + j / 2 * 32..][..32]);
            for ((o, low), high) in out.iter_mut().zip(low).zip(high) {
                let code = low >> (j % 2 * 4) & 15 | (high >> j & 1) << 4;
                *o = scale * f32::from(code) - min;
            }
        }
    });
}
