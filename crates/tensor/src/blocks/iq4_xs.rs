//! `iq4_xs`: 256 values in 136 bytes, 8 sub-blocks of 32 values on the steps of `iq4_nl`.

use bytemuck::{Pod, Zeroable};

use super::iq4_nl::{STEPS, Steps, codes};
use super::nested::nested;
use super::search::Part;
use super::{Block, decode_blocks, encode_blocks, f16_bytes, join_nibbles, nibbles, read_f16};
use crate::{DType, TensorError};

/// 256 values, 8 sub-blocks of 32: `d · (scale − 32) · IQ4_STEPS[code]`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Iq4Xs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// u16: bits 2b..2b+2 are the high bits of sub-block b's scale.
    pub scales_h: [u8; 2],
    /// Low four bits of the scales, a nibble per sub-block, the low one first.
    pub scales_l: [u8; 4],
    /// Sub-blocks: the low nibble of byte j is value j, the high nibble value j + 16.
    pub qs: [[u8; 16]; 8],
}

impl Block for Iq4Xs {
    const DTYPE: DType = DType::IQ4_XS;
    const ELEMS: usize = 256;
}

impl Iq4Xs {
    /// Sub-block `b`'s scale, 32 already taken off.
    #[inline(always)]
    pub fn scale(&self, b: usize) -> i8 {
        let low = self.scales_l[b / 2] >> (b % 2 * 4) & 15;
        let high = self.scales_h[b / 4] >> (b % 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    }

    /// Stores what [`Iq4Xs::scale`] gives, into bits that were zero.
    pub fn put_scale(&mut self, b: usize, scale: i8) {
        let code = (scale + 32) as u8;
        self.scales_l[b / 2] |= (code & 15) << (b % 2 * 4);
        self.scales_h[b / 4] |= (code >> 4) << (b % 4 * 2);
    }
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Iq4Xs, out: &mut [f32; Iq4Xs::ELEMS]| {
        let d = read_f16(block.d);
        for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = d * f32::from(block.scale(b));
            for (o, &code) in out.iter_mut().zip(&nibbles(&block.qs[b])) {
                *o = scale * STEPS[usize::from(code)];
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Iq4Xs::ELEMS }>| {
        let parts = part.split::<8, 32>();
        let best = nested::<Steps, 8, 32>(&parts, (-32.0, 31.0))?;
        let mut block = Iq4Xs { d: f16_bytes(best.d), ..Iq4Xs::zeroed() };
        for (b, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
            block.put_scale(b, sub);
            block.qs[b] = join_nibbles(&codes(part.x, best.d * f32::from(sub)));
        }
        Some(block)
    })
}
