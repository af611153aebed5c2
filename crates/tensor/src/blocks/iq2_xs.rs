//! `iq2_xs`: 256 values in 74 bytes, 16 sub-blocks of 16 values in 2 groups of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`: a u16 per group, nine bits of point and seven sign bits |
//! | 66..74 | `sc`: a nibble per sub-block, the low one first |
//!
//! value = ± d · (scale + 1/2) / 4 · coordinate

use super::lattice::{even_signs, put_iq2};
use super::{decode_blocks, grids, read_f16, read_u16};

pub(crate) const SIZE: (usize, usize) = (256, 74);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block[66 + group / 4] >> (group / 2 % 2 * 4) & 15;
            let scale = d * (0.5 + f32::from(step)) * 0.25;
            let packed = read_u16(block, 2 + 2 * group);
            let point = grids::IQ2_XS[usize::from(packed & 511)];
            put_iq2(point, scale, even_signs((packed >> 9) as u8), out);
        }
    });
}
