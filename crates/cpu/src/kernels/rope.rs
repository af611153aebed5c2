//! `rope`: every pair (a, b) of channels becomes `m·(a·cos − b·sin, b·cos + a·sin)` of its angle at the row's position;
//! channels beyond the rotary ones are copied.
//!
//! The angle is a product in f64 that is reduced to a part of a turn there, so sine and cosine are as exact at position
//! a million as at one. They are computed once per row and used for all heads. An item is a row; 8 bytes per value.
#![allow(unsafe_code)]

use std::f64::consts::TAU;

use mambo_kernel::{Op, OpKind, Operand, Rope as Turns, RopePairs};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::simd::{LANES, Math, Simd, part, part_mut, vectors};

pub(crate) struct Rope {
    pub x: Operand,
    pub out: Operand,
    /// Turns per position of every pair.
    pub turns: Vec<f64>,
    /// Factor on the rotated values.
    pub magnitude: f32,
    pub head_dim: usize,
    pub pairs: RopePairs,
}

impl Rope {
    /// Sines and cosines of sixteen pairs from `first` on, times the magnitude; zero turns beyond the last pair.
    #[inline(always)]
    fn angles<S: Simd>(&self, position: usize, first: usize) -> (S::F, S::F) {
        let (mut quarters, mut rests) = ([0.0f32; LANES], [0.0f32; LANES]);
        for (i, turns) in self.turns[first..].iter().take(LANES).enumerate() {
            let turns = position as f64 * turns;
            let quarter_turns = 4.0 * (turns - turns.floor());
            let whole = quarter_turns.round_ties_even();
            quarters[i] = whole as f32;
            rests[i] = (quarter_turns - whole) as f32;
        }
        let (sin, cos) = S::sin_cos(S::to_int(S::load(&quarters)), S::load(&rests));
        let magnitude = S::splat(self.magnitude);
        (S::mul(sin, magnitude), S::mul(cos, magnitude))
    }

    /// Sines and cosines of a position as the turning of a head reads them.
    #[inline(always)]
    fn prepare<S: Simd>(&self, position: usize, sin: &mut [f32], cos: &mut [f32]) {
        for first in (0..self.turns.len()).step_by(LANES) {
            let (s, c) = self.angles::<S>(position, first);
            match self.pairs {
                RopePairs::Halves => {
                    S::store_part(s, part_mut(sin, first / LANES));
                    S::store_part(c, part_mut(cos, first / LANES));
                }
                RopePairs::Neighbours => {
                    let (mut lanes_s, mut lanes_c) = ([0.0; LANES], [0.0; LANES]);
                    S::store(s, &mut lanes_s);
                    S::store(c, &mut lanes_c);
                    let pairs =
                        sin[2 * first..].chunks_exact_mut(2).zip(cos[2 * first..].chunks_exact_mut(2));
                    for ((sin, cos), (s, c)) in pairs.zip(lanes_s.into_iter().zip(lanes_c)) {
                        sin.copy_from_slice(&[-s, s]);
                        cos.copy_from_slice(&[c, c]);
                    }
                }
            }
        }
    }

    /// Turns one head.
    #[inline(always)]
    fn turn<S: Simd>(&self, x: &[f32], sin: &[f32], cos: &[f32], out: &mut [f32]) {
        let rotary = 2 * self.turns.len();
        let (x, kept) = x.split_at(rotary);
        let (out, rest) = out.split_at_mut(rotary);
        rest.copy_from_slice(kept);
        match self.pairs {
            RopePairs::Halves => {
                let (a, b) = x.split_at(rotary / 2);
                let (first, second) = out.split_at_mut(rotary / 2);
                for i in 0..vectors(a.len()) {
                    let (a, b) = (S::load_part(part(a, i)), S::load_part(part(b, i)));
                    let (s, c) = (S::load_part(part(sin, i)), S::load_part(part(cos, i)));
                    let minus = S::sub(S::zero(), S::mul(b, s));
                    S::store_part(S::fma(a, c, minus), part_mut(first, i));
                    S::store_part(S::fma(b, c, S::mul(a, s)), part_mut(second, i));
                }
            }
            RopePairs::Neighbours => {
                for i in 0..vectors(rotary) {
                    let x = S::load_part(part(x, i));
                    let (s, c) = (S::load_part(part(sin, i)), S::load_part(part(cos, i)));
                    S::store_part(S::fma(x, c, S::mul(S::swap_pairs(x), s)), part_mut(out, i));
                }
            }
        }
    }
}

impl Work for Rope {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let width = match self.pairs {
            RopePairs::Halves => self.turns.len(),
            RopePairs::Neighbours => 2 * self.turns.len(),
        };
        let (sin, rest) = scratch.floats.split_at_mut(width);
        let cos = &mut rest[..width];
        let own = cx.own(x.rows());
        for segment in cx.step.segments {
            let rows = segment.row_range();
            for row in own.start.max(rows.start)..own.end.min(rows.end) {
                self.prepare::<S>(segment.position as usize + row - rows.start, sin, cos);
                // SAFETY: a row belongs to one item.
                let out = unsafe { out.cols_mut(row, 0..x.cols()) };
                let heads = x.row(row).chunks_exact(self.head_dim).zip(out.chunks_exact_mut(self.head_dim));
                for (head, out) in heads {
                    self.turn::<S>(head, sin, cos, out);
                }
            }
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: 4 * self.turns.len(), ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| match b.call.op {
        Op::Rope(rope) => {
            let Turns { head_dim, rotary, pairs, has_factors, .. } = rope;
            let factors = if has_factors { Some(b.vector(0, rotary / 2)?) } else { None };
            let frequencies = rope.frequencies(factors.as_ref().map(|factors| &factors[..]));
            let turns = frequencies.into_iter().map(|radians| radians / TAU).collect();
            let magnitude = rope.magnitude() as f32;
            b.kernel(Rope { x: b.x(), out: b.out(), turns, magnitude, head_dim, pairs })
        }
        _ => b.wrong_op(),
    };
    vec![Declaration::new(isa, OpKind::Rope, "f32", bind)]
}
