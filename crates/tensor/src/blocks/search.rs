//! Scale search for formats without a minimum: which scale gives the least weighted squared error.
//!
//! Every search also tries the plain choice (the largest value on the last code), so it never does worse.
//! Sums run in fixed lanes, so results do not depend on the machine. A scan evaluates one scale per lane: horizontal
//! sums, and branches that depend on them, would cost more than the arithmetic.

use half::f16;

/// Partial sums side by side, so that compilers use vector instructions.
const LANES: usize = 8;

/// Values of a block and the weights of their squared errors, all in 0..=1.
#[derive(Clone, Copy)]
pub struct Part<'a, const N: usize> {
    pub x: &'a [f32; N],
    pub w: &'a [f32; N],
}

impl<'a, const N: usize> Part<'a, N> {
    /// The block cut into `SUBS` sub-blocks of `M` values.
    pub fn split<const SUBS: usize, const M: usize>(&self) -> [Part<'a, M>; SUBS] {
        let (x, w) = (self.x.as_chunks::<M>().0, self.w.as_chunks::<M>().0);
        std::array::from_fn(|i| Part { x: &x[i], w: &w[i] })
    }
}

/// The numbers a code can stand for, before the scale.
pub trait Grid {
    /// The number of the largest magnitude; negative.
    const FIRST: f32;
    /// Whether a search tries scales of both signs: worthwhile for few numbers that are asymmetric about zero.
    const BOTH_SIGNS: bool;
    /// Step between the inverse scales that a search tries, relative to the plain one.
    const STEP: f32;
    /// The number nearest to `v`; either one on a tie.
    fn nearest(v: f32) -> f32;
}

/// The integers `LO..=HI`.
pub struct Whole<const LO: i32, const HI: i32>;

impl<const LO: i32, const HI: i32> Grid for Whole<LO, HI> {
    const FIRST: f32 = LO as f32;
    const BOTH_SIGNS: bool = false;
    const STEP: f32 = 0.3 / -Self::FIRST;

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        nearest_whole(v, LO as f32, HI as f32)
    }
}

/// Rounds to nearest even, for |v| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
#[inline(always)]
pub fn round(v: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (v + MAGIC) - MAGIC
}

/// The integer in `lo..=hi` nearest to `v`.
#[inline(always)]
pub fn nearest_whole(v: f32, lo: f32, hi: f32) -> f32 {
    // Rounding comes first: out-of-range values stay out of range, and rounding a constant limit would become a
    // branch. Comparisons are single instructions; `max` and `min` also handle NaN.
    let v = round(v);
    let v = if v > lo { v } else { lo };
    if v < hi { v } else { hi }
}

/// Applies `f` to every value. The arithmetic of a trial is a sequence of such short loops, because compilers vectorise
/// that form.
#[inline(always)]
pub fn each<const N: usize>(x: &[f32; N], f: impl Fn(f32) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = f(x[i]);
    }
    out
}

/// Σ a·b, in fixed lanes.
#[inline(always)]
pub fn dot<const N: usize>(a: &[f32; N], b: &[f32; N]) -> f32 {
    let mut sums = [0f32; LANES];
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks::<LANES>().0) {
        for l in 0..LANES {
            sums[l] += a[l] * b[l];
        }
    }
    let four: [f32; 4] = std::array::from_fn(|l| sums[l] + sums[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// a·b of each pair.
#[inline(always)]
pub fn times<const N: usize>(a: &[f32; N], b: &[f32; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = a[i] * b[i];
    }
    out
}

/// The codes of values under an inverse scale, plus `shift` so that none is negative.
#[inline(always)]
pub fn codes<G: Grid, const N: usize>(x: &[f32; N], inv: f32, shift: f32) -> [u8; N] {
    let mut out = [0; N];
    for i in 0..N {
        out[i] = (G::nearest(x[i] * inv) + shift) as i32 as u8;
    }
    out
}

/// `1 / scale`, or 0 for zero and subnormal scales: a zero scale stores zeros.
#[inline(always)]
pub fn inverse(scale: f32) -> f32 {
    if scale.abs() < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}

/// Scales below this lose precision as f16.
const MIN_NORMAL_F16: f32 = 1.0 / 16384.0;

/// The nearest f16, as f32; `None` beyond its range. A scale that would underflow to zero
/// becomes the smallest f16, so that a block of tiny values keeps its signs.
pub fn to_f16(scale: f32) -> Option<f32> {
    let rounded = f16::from_f32(scale).to_f32();
    if rounded == 0.0 && scale != 0.0 {
        return Some(f16::from_bits(1).to_f32().copysign(scale));
    }
    rounded.is_finite().then_some(rounded)
}

/// Weighted sums of one trial quantisation `x ≈ scale·q`.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// Σ w·x·q
    pub xq: f32,
    /// Σ w·q²
    pub qq: f32,
}

impl Sums {
    /// The least-squares scale for the codes.
    fn scale(&self) -> Option<f32> {
        (self.qq > 0.0).then(|| self.xq / self.qq)
    }
}

/// Quantises with a scale and returns the sums.
#[inline(always)]
pub fn sums<G: Grid, const N: usize>(part: Part<N>, scale: f32) -> Sums {
    let inv = inverse(scale);
    let q = each(part.x, |v| G::nearest(v * inv));
    let wq = times(part.w, &q);
    Sums { xq: dot(&wq, part.x), qq: dot(&wq, &q) }
}

/// The weighted squared error of a scale.
#[inline(always)]
pub fn error<G: Grid, const N: usize>(part: Part<N>, scale: f32) -> f32 {
    let inv = inverse(scale);
    let e = each(part.x, |v| v - scale * G::nearest(v * inv));
    dot(&times(part.w, &e), &e)
}

/// The value of the largest magnitude, with its sign.
pub fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |m, &v| if v.abs() > m.abs() { v } else { m })
}

/// Scales that a search tries, from a little above the plain one down, [`Grid::STEP`] apart.
const TRIED: usize = 16;
const ABOVE_PLAIN: f32 = 5.0;

/// The sums of [`sums`] under several inverse scales at once: a lane of a vector register is a scale.
fn scan<G: Grid, const N: usize>(part: Part<N>, inverses: &[f32; TRIED]) -> ([f32; TRIED], [f32; TRIED]) {
    let (mut xq, mut qq) = ([0.0; TRIED], [0.0; TRIED]);
    for (&x, &w) in part.x.iter().zip(part.w) {
        let q = each(inverses, |inv| G::nearest(x * inv));
        let wq = each(&q, |q| w * q);
        for k in 0..TRIED {
            xq[k] += x * wq[k];
        }
        for k in 0..TRIED {
            qq[k] += q[k] * wq[k];
        }
    }
    (xq, qq)
}

/// A good unrounded scale for `x ≈ scale·q`.
///
/// A scan over scales, each judged by the least error its codes can reach when the scale is then fitted to
/// them: Σwx² − (Σwxq)²/Σwq².
pub fn symmetric_scale<G: Grid, const N: usize>(part: Part<N>) -> f32 {
    let plain = extreme(part.x) / G::FIRST;
    if plain == 0.0 {
        return 0.0;
    }
    let mut best = (Sums { xq: plain, qq: 1.0 }, 0.0);
    let inv = inverse(plain);
    let inverses = std::array::from_fn(|k| {
        if G::BOTH_SIGNS {
            let sign = if k % 2 == 0 { inv } else { -inv };
            sign * (1.0 + 2.0 * G::STEP * ((k / 2) as f32 - ABOVE_PLAIN / 2.0))
        } else {
            inv * (1.0 + G::STEP * (k as f32 - ABOVE_PLAIN))
        }
    });
    let (xq, qq) = scan::<G, N>(part, &inverses);
    for (xq, qq) in xq.into_iter().zip(qq) {
        let gain = if qq > 0.0 { xq * xq / qq } else { 0.0 };
        if gain > best.1 {
            best = (Sums { xq, qq }, gain);
        }
    }
    best.0.xq / best.0.qq
}

/// The f16 scale with the least squared error for `x ≈ scale·q`; `None` when the plain one is beyond f16.
pub fn symmetric_f16<G: Grid, const N: usize>(part: Part<N>) -> Option<f32> {
    let plain = to_f16(extreme(part.x) / G::FIRST)?;
    let (mut best, mut best_error) = (plain, error::<G, N>(part, plain));
    let mut scale = symmetric_scale::<G, N>(part);
    // Rounding the scale changes some codes; a second fit corrects for that.
    for _ in 0..2 {
        let Some(rounded) = to_f16(scale) else { break };
        let error = error::<G, N>(part, rounded);
        if error < best_error {
            (best, best_error) = (rounded, error);
        }
        let Some(fitted) = sums::<G, N>(part, rounded).scale() else { break };
        scale = fitted;
    }
    // On a grid without zero, the smallest scale can be worse than zero.
    if best.abs() < MIN_NORMAL_F16 && error::<G, N>(part, 0.0) < best_error {
        best = 0.0;
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_even() {
        let got = [0.5, 1.5, 2.5, -0.5, -1.5, 3.49, -127.6].map(round);
        assert_eq!(got, [0.0, 2.0, 2.0, 0.0, -2.0, 3.0, -128.0]);
    }

    #[test]
    fn tiny_scales_do_not_vanish() {
        assert_eq!(to_f16(1e-12), Some(2f32.powi(-24)));
        assert_eq!(to_f16(-1e-12), Some(-(2f32.powi(-24))));
        assert_eq!(to_f16(0.0), Some(0.0));
        assert_eq!(to_f16(7e4), None);
    }

    #[test]
    fn an_exact_grid_is_found() {
        let x: [f32; 32] = std::array::from_fn(|i| (i as f32 - 16.0) * 0.25);
        let part = Part { x: &x, w: &[1.0; 32] };
        let d = symmetric_f16::<Whole<-16, 15>, 32>(part).unwrap();
        assert_eq!(error::<Whole<-16, 15>, 32>(part, d), 0.0);
    }
}
