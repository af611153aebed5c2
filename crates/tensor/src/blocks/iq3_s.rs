//! `iq3_s`: 256 values in 110 bytes, 8 sub-blocks of 32 values in 4 groups of 8, each of two points.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..66 | `qs`: low eight bits of one point (four values) per byte |
//! | 66..74 | `qh`: the ninth bit of eight points per byte |
//! | 74..106 | `signs`: a byte per group |
//! | 106..110 | `sc`: a nibble per sub-block, the low one first |
//!
//! value = ± d · (2·scale + 1) · (2·coordinate + 1)

use super::lattice::put_iq3_s;
use super::{decode_blocks, grids, read_f16};

pub(crate) const SIZE: (usize, usize) = (256, 110);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let step = block[106 + group / 8] >> (group / 4 % 2 * 4) & 15;
            let scale = d * f32::from(2 * step + 1);
            let points = [0, 1].map(|k| {
                let i = 2 * group + k;
                let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
                grids::IQ3_S[usize::from(block[2 + i]) | high << 8]
            });
            put_iq3_s(points, scale, block[74 + group], out);
        }
    });
}
