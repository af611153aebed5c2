//! `q6_k`: 256 values in 210 bytes, 16 sub-blocks of 16 values.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | `ql`: low four bits of the codes |
//! | 128..192 | `qh`: high two bits of the codes |
//! | 192..208 | `sc`: one i8 scale per sub-block |
//! | 208..210 | `d`, f16 |
//!
//! Half n (128 values) uses ql[64n..], qh[32n..], sc[8n..]. Its value 32·p + l (p 0..4, l 0..32) takes a
//! nibble of ql[l + 32·(p mod 2)], the low one for p < 2, and bits 2p..2p+2 of qh[l].
//!
//! value = d · sc · (code − 32)

use super::search::{code, extreme, inverse, round, symmetric_scale, to_f16, trial};
use super::{decode_blocks, encode_blocks, read_f16, write_f16};
use crate::{DType, TensorError};

pub(crate) const SIZE: (usize, usize) = (256, 210);
const RANGE: (f32, f32) = (-32.0, 31.0);

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &[u8; SIZE.1], out: &mut [f32; SIZE.0]| {
        let d = read_f16(block, 208);
        for (half, out) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (ql, qh) = (&block[64 * half..64 * half + 64], &block[128 + 32 * half..160 + 32 * half]);
            let scales = &block[192 + 8 * half..200 + 8 * half];
            for (p, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                for (l, o) in out.iter_mut().enumerate() {
                    let low = ql[l + 32 * (p % 2)] >> (4 * (p / 2)) & 15;
                    let high = qh[l] >> (2 * p) & 3;
                    let scale = d * f32::from(scales[2 * p + l / 16] as i8);
                    *o = scale * (f32::from(low | high << 4) - 32.0);
                }
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(DType::Q6K, values, out, |x: &[f32; SIZE.0], block: &mut [u8; SIZE.1]| {
        let (subs, _) = x.as_chunks::<16>();
        let plain = Scales::fit(subs, subs.iter().map(|s| extreme(s) / RANGE.0))?;
        let searched = Scales::fit(subs, subs.iter().map(|s| symmetric_scale(s, RANGE)));
        let best = [searched, Scales::refit(subs, searched.as_ref().unwrap_or(&plain))]
            .into_iter()
            .flatten()
            .fold(plain, |best, other| if other.error < best.error { other } else { best });
        best.pack(subs, block);
        Some(())
    })
}

/// Scales of a block and the squared error they reach.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    subs: [i8; 16],
    error: f32,
}

impl Scales {
    /// Puts the largest scale on the last i8 and the others on the nearest step or a neighbour of it.
    fn fit(subs: &[[f32; 16]], scales: impl Iterator<Item = f32> + Clone) -> Option<Scales> {
        let largest = scales.clone().fold(0f32, |m, v| if v.abs() > m.abs() { v } else { m });
        let d = to_f16(largest / -128.0)?;
        Some(Scales::settle(subs, d, scales))
    }

    /// Fits `d` to the codes of `from`, then settles the sub-blocks' scales again.
    fn refit(subs: &[[f32; 16]], from: &Scales) -> Option<Scales> {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (x, &sub) in subs.iter().zip(&from.subs) {
            let s = trial(x, from.d * f32::from(sub), 0.0, RANGE);
            xq += s.xq * f32::from(sub);
            qq += s.qq * f32::from(sub) * f32::from(sub);
        }
        if qq == 0.0 {
            return None;
        }
        let scales = from.subs.map(|sub| from.d * f32::from(sub));
        Some(Scales::settle(subs, to_f16(xq / qq)?, scales.into_iter()))
    }

    fn settle(subs: &[[f32; 16]], d: f32, scales: impl Iterator<Item = f32>) -> Scales {
        let inv = inverse(d);
        let mut best = Scales { d, subs: [0; 16], error: 0.0 };
        for ((x, scale), sub) in subs.iter().zip(scales).zip(&mut best.subs) {
            let nearest = code(scale, inv, -128.0, 127.0);
            let mut least = f32::INFINITY;
            for step in [0.0, -1.0, 1.0] {
                let candidate = (nearest + step).clamp(-128.0, 127.0);
                let error = trial(x, d * candidate, 0.0, RANGE).error;
                if error < least {
                    (least, *sub) = (error, round(candidate) as i8);
                }
            }
            best.error += least;
        }
        best
    }

    fn pack(&self, subs: &[[f32; 16]], block: &mut [u8; SIZE.1]) {
        block.fill(0);
        for (i, (x, &sub)) in subs.iter().zip(&self.subs).enumerate() {
            let inv = inverse(self.d * f32::from(sub));
            let (half, p) = (i / 8, i % 8 / 2);
            for (k, &v) in x.iter().enumerate() {
                let l = i % 2 * 16 + k;
                let q = (code(v, inv, RANGE.0, RANGE.1) + 32.0) as u8;
                block[64 * half + l + 32 * (p % 2)] |= (q & 15) << (4 * (p / 2));
                block[128 + 32 * half + l] |= (q >> 4) << (2 * p);
            }
            block[192 + i] = sub as u8;
        }
        write_f16(block, 208, self.d);
    }
}
