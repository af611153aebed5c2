//! `iq4_nl`: 32 values in 18 bytes, on a table of sixteen steps that are finer near zero.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, f16 |
//! | 2..18 | `qs`: the low nibble of byte j is the code of value j, the high nibble of value j + 16 |
//!
//! value = d · STEPS\[code\]

use super::search::{Grid, Part, inverse, symmetric_f16};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (32, 18);

/// What a code stands for.
pub(super) const STEPS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Midpoints between neighbouring steps.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (STEPS[i] + STEPS[i + 1]) / 2.0;
        i += 1;
    }
    middles
};

/// The table as a grid to search on.
pub(super) struct Steps;

impl Grid for Steps {
    const FIRST: f32 = STEPS[0];
    const BOTH_SIGNS: bool = true;
    const STEP: f32 = 0.03;

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        // A sum over all steps has no branches and no look-ups, so it runs in vector instructions.
        let mut step = STEPS[0];
        for i in 0..15 {
            step += if v > MIDDLES[i] { STEPS[i + 1] - STEPS[i] } else { 0.0 };
        }
        step
    }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 0);
        for j in 0..16 {
            let byte = block[2 + j];
            out[j] = d * STEPS[usize::from(byte & 15)];
            out[j + 16] = d * STEPS[usize::from(byte >> 4)];
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(
        DType::IQ4_NL,
        values,
        importance,
        out,
        |part: Part<{ SIZE.0 }>, block: &mut [u8; SIZE.1]| {
            let d = symmetric_f16::<Steps, _>(part)?;
            write_f16(block, 0, d);
            write_codes(part.x, d, &mut block[2..]);
            Some(())
        },
    )
}

/// The codes of 32 values in 16 bytes, halves in the low and high nibbles.
pub(super) fn write_codes(x: &[f32; 32], scale: f32, out: &mut [u8]) {
    let inv = inverse(scale);
    let mut q = [0u8; 32];
    for middle in MIDDLES {
        for (q, v) in q.iter_mut().zip(x) {
            *q += u8::from(v * inv > middle);
        }
    }
    for j in 0..16 {
        out[j] = q[j] | q[j + 16] << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_step_is_found() {
        for v in (-1300..1300).map(|i| i as f32 / 10.0 + 0.01) {
            let distance = |s: f32| (s - v).abs();
            let best = STEPS.into_iter().fold(f32::INFINITY, |m, s| m.min(distance(s)));
            assert_eq!(distance(Steps::nearest(v)), best, "{v}");
        }
    }
}
