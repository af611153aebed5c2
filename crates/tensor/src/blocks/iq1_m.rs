//! `iq1_m`: 256 values in 56 bytes, 16 sub-blocks of 16 values in 2 groups of 8.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | `qs`: low eight bits of each group's point |
//! | 32..48 | `qh`: a nibble per group; bits 0..3 are the high bits of its point, 3 the shift's sign |
//! | 48..56 | `sc`: four u16; bits 3k..3k+3 of the i-th are the scale of sub-block 4i + k, its top nibble is nibble i of `d`, f16 |
//!
//! value = d · (2·scale + 1) · (coordinate − 1 ± 1/8)

use half::f16;

use super::lattice::put_iq1;
use super::{decode_blocks, grids, read_u16};

pub(crate) const SIZE: (usize, usize) = (256, 56);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let packed: [u16; 4] = std::array::from_fn(|i| read_u16(block, 48 + 2 * i));
        let bits = (0..4).fold(0, |bits, i| bits | packed[i] >> 12 << (4 * i));
        let d = f16::from_bits(bits).to_f32();
        for (group, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let sub = group / 2;
            let scale = d * f32::from(2 * (packed[sub / 4] >> (sub % 4 * 3) & 7) + 1);
            let high = block[32 + group / 2] >> (group % 2 * 4) & 15;
            let point = u16::from(block[group]) | u16::from(high & 7) << 8;
            put_iq1(grids::IQ1[usize::from(point)], scale, high >> 3 == 1, out);
        }
    });
}
