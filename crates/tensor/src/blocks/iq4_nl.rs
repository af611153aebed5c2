//! `iq4_nl`: 32 values in 18 bytes, on a table of sixteen steps that are finer near zero.

use bytemuck::{Pod, Zeroable};

use super::search::{Grid, Part, inverse, symmetric_f16};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, join_nibbles, nibbles, read_f16};
use crate::{DType, TensorError};

/// 32 values: `d · IQ4_STEPS[code]`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq4Nl {
    /// Scale, f16.
    pub d: [u8; 2],
    /// The low nibble of byte j is the code of value j, the high nibble of value j + 16.
    pub qs: [u8; 16],
}

impl Block for Iq4Nl {
    const DTYPE: DType = DType::IQ4_NL;
    const ELEMS: usize = 32;
}

/// What a code of `iq4_nl` and `iq4_xs` stands for: whole steps, finer near zero.
pub const IQ4_STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The steps as they are multiplied.
pub(super) const STEPS: [f32; 16] = {
    let mut steps = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        steps[i] = IQ4_STEPS[i] as f32;
        i += 1;
    }
    steps
};

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
    decode_blocks(bytes, out, |block: &Iq4Nl, out: &mut [f32; Iq4Nl::ELEMS]| {
        let d = read_f16(block.d);
        for (o, &code) in out.iter_mut().zip(&nibbles(&block.qs)) {
            *o = d * STEPS[usize::from(code)];
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Iq4Nl::ELEMS }>| {
        let d = symmetric_f16::<Steps, _>(part)?;
        Some(Iq4Nl { d: f16_bytes(d), qs: join_nibbles(&codes(part.x, d)) })
    })
}

/// The codes of 32 values under a scale.
pub(super) fn codes(x: &[f32; 32], scale: f32) -> [u8; 32] {
    let inv = inverse(scale);
    let mut codes = [0u8; 32];
    for middle in MIDDLES {
        for (code, v) in codes.iter_mut().zip(x) {
            *code += u8::from(v * inv > middle);
        }
    }
    codes
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
