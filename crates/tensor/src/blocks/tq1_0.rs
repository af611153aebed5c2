//! `tq1_0`: 256 values in 54 bytes, three states each, five to a byte.

use bytemuck::{Pod, Zeroable};

use super::{Block, decode_blocks, read_f16};
use crate::DType;

/// 256 values of three states each, five to a byte: `d · (digit − 1)`.
///
/// A byte is a fraction byte/256 whose ternary digits follow the point, the first digit being p = 0.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Tq1_0 {
    /// Values 0..160: digit p of byte l is value 32·p + l.
    pub first: [u8; 32],
    /// Values 160..240: digit p of byte l is value 160 + 16·p + l.
    pub second: [u8; 16],
    /// Values 240..256: digit p of byte l is value 240 + 4·p + l, four digits.
    pub third: [u8; 4],
    /// Scale, f16.
    pub d: [u8; 2],
}

impl Block for Tq1_0 {
    const DTYPE: DType = DType::TQ1_0;
    const ELEMS: usize = 256;
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Tq1_0, out: &mut [f32; Tq1_0::ELEMS]| {
        let d = read_f16(block.d);
        let (first, rest) = out.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        digits(&block.first, d, first);
        digits(&block.second, d, second);
        digits(&block.third, d, third);
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
