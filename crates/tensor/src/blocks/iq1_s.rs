//! `iq1_s`: 256 values in 50 bytes, 8 sub-blocks of 32 values in 4 groups of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: low eight bits of each group's point |
//! | 34..50 | `qh`: a u16 per sub-block; bits 3g..3g+3 are the high bits of group g's point, 12..15 the scale, 15 the shift's sign |
//!
//! value = d · (2·scale + 1) · (coordinate − 1 ± 1/8)

use super::lattice::put_iq1;
use super::{decode_blocks, grids, read_f16, read_u16};

pub(crate) const SIZE: (usize, usize) = (256, 50);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = read_u16(block, 34 + group / 4 * 2);
            let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
            let point = u16::from(block[2 + group]) | (high >> (group % 4 * 3) & 7) << 8;
            put_iq1(grids::IQ1[usize::from(point)], scale, high >> 15 == 1, out);
        }
    });
}
