//! `rope`: at position p, the pair (a, b) of channels with frequency f of every head becomes
//! `m · (a·cos(p·f) − b·sin(p·f), b·cos(p·f) + a·sin(p·f))`; channels beyond the rotary ones stay.
//! Frequencies, pairs and the magnitude m are those of [`Rope`].
//!
//! Tolerance: the angle is exact to f64 before it is reduced, sine and cosine are f32.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;
use crate::rope::{Rope, RopePairs, RopeScaling};

/// One row at a position, in f64.
pub fn reference(rope: &Rope, x: &[f32], position: usize, factors: Option<&[f32]>) -> Vec<f32> {
    let (frequencies, magnitude) = (rope.frequencies(factors), rope.magnitude());
    let mut out = x.to_vec();
    for (x, out) in x.chunks(rope.head_dim).zip(out.chunks_mut(rope.head_dim)) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let (a, b) = match rope.pairs {
                RopePairs::Halves => (i, i + rope.rotary / 2),
                RopePairs::Neighbours => (2 * i, 2 * i + 1),
            };
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (first, second) = (f64::from(x[a]), f64::from(x[b]));
            out[a] = (magnitude * (first * cos - second * sin)) as f32;
            out[b] = (magnitude * (second * cos + first * sin)) as f32;
        }
    }
    out
}

/// Both kinds of pairs, heads rotated in part, odd head sizes, every scaling, long contexts.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(33);
    let yarn = |truncate| RopeScaling::Yarn {
        factor: 32.0,
        original: 512.0,
        fast: 32.0,
        slow: 1.0,
        truncate,
        magnitude: Rope::yarn_magnitude(32.0),
    };
    let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
    let kinds = [
        (2, 14, 14, RopePairs::Halves, 5e5, llama3),
        (3, 22, 22, RopePairs::Neighbours, 1e4, RopeScaling::None),
        (4, 64, 32, RopePairs::Halves, 1e11, RopeScaling::None),
        (1, 12, 6, RopePairs::Neighbours, 1e6, RopeScaling::Linear { factor: 8.0 }),
        (8, 128, 128, RopePairs::Halves, 150_000.0, yarn(false)),
        (2, 64, 64, RopePairs::Halves, 1e6, yarn(true)),
    ];
    let mut cases: Vec<Case> = kinds
        .iter()
        .map(|&(heads, head_dim, rotary, pairs, base, scaling)| {
            let rope = Rope { head_dim, rotary, pairs, base, scaling, has_factors: false };
            let name = format!("{rotary} of {head_dim} channels, {pairs:?}, {scaling:?}");
            Case::new(name, Op::Rope(rope), &RAGGED, 2e-6).input(heads * head_dim, || rng.normal())
        })
        .collect();
    let rope = Rope {
        head_dim: 64,
        rotary: 64,
        pairs: RopePairs::Neighbours,
        base: 5e5,
        scaling: RopeScaling::None,
        has_factors: true,
    };
    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 * 0.2).collect();
    cases.push(
        Case::new("factors, long", Op::Rope(rope), &[3, 5000], 2e-6)
            .weight(CaseWeight::f32(&[32], &factors))
            .input(128, || rng.normal()),
    );
    cases
}
