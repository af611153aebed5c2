//! `tq1_0`: 256 values in 54 bytes, three states each, five to a byte.
//!
//! | bytes | field |
//! |---|---|
//! | 0..32 | values 0..160: digit p of byte l is value 32·p + l |
//! | 32..48 | values 160..240: digit p of byte l is value 160 + 16·p + l |
//! | 48..52 | values 240..256: digit p of byte l is value 240 + 4·p + l, four digits |
//! | 52..54 | `d`, f16 |
//!
//! A byte is a fraction byte/256 whose ternary digits follow the point, the first digit being p = 0.
//!
//! value = d · (digit − 1)

use super::{decode_blocks, read_f16};

pub(crate) const SIZE: (usize, usize) = (256, 54);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 52);
        let (first, rest) = out.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        digits(&block[..32], d, first);
        digits(&block[32..48], d, second);
        digits(&block[48..52], d, third);
    });
}

/// Extracts one digit after the other from the bytes, writing a run of values per digit.
fn digits(bytes: &[u8], d: f32, out: &mut [f32]) {
    let mut power = 1u8;
    for run in out.chunks_exact_mut(bytes.len()) {
        for (o, byte) in run.iter_mut().zip(bytes) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *o = d * (f32::from(digit) - 1.0);
        }
        power = power.wrapping_mul(3);
    }
}
