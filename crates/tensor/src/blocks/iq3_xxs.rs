//! `iq3_xxs`: 256 values in 98 bytes, 8 sub-blocks of 32 values in 4 groups of 8, each of two points.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`: one point (four values) per byte |
//! | 66..98 | a u32 per sub-block: seven sign bits per group and the scale in its top nibble |
//!
//! value = ± d · (scale + 1/2) / 2 · coordinate

use super::lattice::{even_signs, put_iq3_xxs};
use super::{decode_blocks, grids, read_f16, read_u32};

pub(crate) const SIZE: (usize, usize) = (256, 98);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let packed = read_u32(block, 66 + group / 4 * 4);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
            let signs = even_signs((packed >> (group % 4 * 7)) as u8);
            let points = [0, 1].map(|k| grids::IQ3_XXS[usize::from(block[2 + 2 * group + k])]);
            put_iq3_xxs(points, scale, signs, out);
        }
    });
}
