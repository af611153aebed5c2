//! `iq2_xxs`: 256 values in 66 bytes, 8 sub-blocks of 32 values in 4 groups of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | eight bytes per sub-block: four points, then a u32 with seven sign bits per group and the scale in its top nibble |
//!
//! value = ± d · (scale + 1/2) / 4 · coordinate

use super::lattice::{even_signs, put_iq2};
use super::{decode_blocks, grids, read_f16, read_u32};

pub(crate) const SIZE: (usize, usize) = (256, 66);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let at = 2 + 8 * sub;
            let packed = read_u32(block, at + 4);
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.25;
            for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let point = grids::IQ2_XXS[usize::from(block[at + group])];
                put_iq2(point, scale, even_signs((packed >> (7 * group)) as u8), out);
            }
        }
    });
}
