//! `iq2_s`: 256 values in 82 bytes, 16 sub-blocks of 16 values in 2 groups of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..34 | `qs`: low eight bits of each group's point |
//! | 34..66 | `signs`: a byte per group |
//! | 66..74 | `qh`: two high bits of each group's point, four groups to a byte |
//! | 74..82 | `sc`: a nibble per sub-block, the low one first |
//!
//! value = ± d · (scale + 1/2) / 4 · coordinate

use super::lattice::put_iq2;
use super::{decode_blocks, grids, read_f16};

pub(crate) const SIZE: (usize, usize) = (256, 82);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block[74 + group / 4] >> (group / 2 % 2 * 4) & 15;
            let scale = d * (0.5 + f32::from(step)) * 0.25;
            let high = usize::from(block[66 + group / 4] >> (group % 4 * 2) & 3);
            let point = grids::IQ2_S[usize::from(block[2 + group]) | high << 8];
            put_iq2(point, scale, block[34 + group], out);
        }
    });
}
