//! `q4_k`: 256 values in 144 bytes, 8 sub-blocks of 32 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2, 2..4 | `d`, `dmin`, f16 |
//! | 4..16 | eight scales and eight minima of six bits each, see `six_bit.rs` |
//! | 16..144 | `qs`: sub-blocks 2i and 2i + 1 are the low and high nibbles of the 32 bytes from 32·i |
//!
//! value = d · scale · code − dmin · min

use super::search::{affine_plain, affine_scale, code, inverse, to_f16, trial};
use super::{decode_blocks, encode_blocks, read_f16, six_bit, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 144);
const HI: f32 = 15.0;
const STEPS: f32 = 63.0;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = six_bit::scale_and_min(&block[4..16], j);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let qs = &block[16 + j / 2 * 32..][..32];
            for (o, q) in out.iter_mut().zip(qs) {
                *o = scale * f32::from(q >> (j % 2 * 4) & 15) - min;
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q4K, values, out, |x: &[f32; SIZE.0], block: &mut [u8; SIZE.1]| {
        let (subs, _) = x.as_chunks::<32>();
        let plain = Scales::fit(subs, &targets(subs, |s| affine_plain(s, HI)))?;
        let searched = Scales::fit(subs, &targets(subs, |s| affine_scale(s, HI)));
        let refitted = Scales::refit(subs, searched.as_ref().unwrap_or(&plain));
        let best = [searched, refitted]
            .into_iter()
            .flatten()
            .fold(plain, |best, other| if other.error < best.error { other } else { best });
        best.pack(subs, block);
        Some(())
    })
}

fn targets(subs: &[[f32; 32]], f: impl Fn(&[f32; 32]) -> (f32, f32)) -> [(f32, f32); 8] {
    std::array::from_fn(|j| f(&subs[j]))
}

/// Scales and minima of a block and the squared error they reach.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    dmin: f32,
    scales: [u8; 8],
    mins: [u8; 8],
    error: f32,
}

impl Scales {
    /// Puts the largest scale and minimum on the last step and the others on or beside the nearest.
    fn fit(subs: &[[f32; 32]], targets: &[(f32, f32); 8]) -> Option<Scales> {
        let d = to_f16(targets.iter().fold(0f32, |m, t| m.max(t.0)) / STEPS)?;
        let dmin = to_f16(targets.iter().fold(0f32, |m, t| m.max(t.1)) / STEPS)?;
        Some(Scales::settle(subs, d, dmin, targets))
    }

    /// Least squares of `d` and `dmin` for the codes of `from`, then settles the steps again.
    fn refit(subs: &[[f32; 32]], from: &Scales) -> Option<Scales> {
        // Normal equations of x ≈ d·a − dmin·b with a = scale·code and b = min.
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f64, 0f64, 0f64, 0f64, 0f64);
        let mut targets = [(0.0, 0.0); 8];
        for (j, x) in subs.iter().enumerate() {
            let (scale, min) = (f32::from(from.scales[j]), f32::from(from.mins[j]));
            targets[j] = (from.d * scale, from.dmin * min);
            let s = trial(x, targets[j].0, targets[j].1, (0.0, HI));
            aa += f64::from(scale * scale * s.qq);
            ab += f64::from(scale * min * s.q);
            bb += f64::from(min * min * 32.0);
            xa += f64::from(scale * s.xq);
            xb += f64::from(min * x.iter().sum::<f32>());
        }
        let det = aa * bb - ab * ab;
        let (d, dmin) = if det > 0.0 {
            ((xa * bb - xb * ab) / det, (xa * ab - xb * aa) / det)
        } else if aa > 0.0 {
            (xa / aa, 0.0)
        } else {
            return None;
        };
        if d < 0.0 || dmin < 0.0 {
            return None;
        }
        Some(Scales::settle(subs, to_f16(d as f32)?, to_f16(dmin as f32)?, &targets))
    }

    fn settle(subs: &[[f32; 32]], d: f32, dmin: f32, targets: &[(f32, f32); 8]) -> Scales {
        let (inv, inv_min) = (inverse(d), inverse(dmin));
        let mut best = Scales { d, dmin, scales: [0; 8], mins: [0; 8], error: 0.0 };
        for (j, x) in subs.iter().enumerate() {
            let (scale, min) = targets[j];
            let nearest = (code(scale, inv, 0.0, STEPS), code(min, inv_min, 0.0, STEPS));
            let mut least = f32::INFINITY;
            for scale_step in [0.0, -1.0, 1.0] {
                let scale = (nearest.0 + scale_step).clamp(0.0, STEPS);
                for min_step in [0.0, -1.0, 1.0] {
                    let min = (nearest.1 + min_step).clamp(0.0, STEPS);
                    let error = trial(x, d * scale, dmin * min, (0.0, HI)).error;
                    if error < least {
                        least = error;
                        (best.scales[j], best.mins[j]) = (scale as u8, min as u8);
                    }
                }
            }
            best.error += least;
        }
        best
    }

    fn pack(&self, subs: &[[f32; 32]], block: &mut [u8; SIZE.1]) {
        block.fill(0);
        write_f16(block, 0, self.d);
        write_f16(block, 2, self.dmin);
        six_bit::pack(&self.scales, &self.mins, &mut block[4..16]);
        for (j, x) in subs.iter().enumerate() {
            let inv = inverse(self.d * f32::from(self.scales[j]));
            let min = self.dmin * f32::from(self.mins[j]);
            for (byte, &v) in block[16 + j / 2 * 32..][..32].iter_mut().zip(x) {
                *byte |= (code(v + min, inv, 0.0, HI) as u8) << (j % 2 * 4);
            }
        }
    }
}
