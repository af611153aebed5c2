//! Search for formats with a scale and an offset: `x ≈ scale·q + low`, `q` the integers `0..=hi`.
//!
//! Values are first shifted so that code 0 of the plain choice is at zero: otherwise sums of squares would lose the
//! precision of a small spread far from zero. Every search also tries the plain choice.

use half::f16;

use super::search::{Part, dot, each, inverse, nearest_whole, times, to_f16};

/// Scales that a search tries, from a little above the plain one down.
const TRIED: usize = 16;
const ABOVE_PLAIN: f32 = 3.0;
/// Difference of two neighbouring ranges that a search tries, in codes.
const SPACING: f32 = 0.3;

/// A line through the codes: code 0 is `low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    pub scale: f32,
    pub low: f32,
}

/// Weighted sums over the values alone.
#[derive(Clone, Copy)]
pub struct Moments {
    /// Σ w
    pub w: f32,
    /// Σ w·x
    pub x: f32,
}

/// Weighted sums of one trial quantisation.
#[derive(Clone, Copy, Default)]
pub struct Trial {
    /// Σ w·(x − value)²
    pub error: f32,
    /// Σ w·q
    pub q: f32,
    /// Σ w·q²
    pub qq: f32,
    /// Σ w·x·q
    pub xq: f32,
}

impl Line {
    /// Smallest value on code 0 and largest on code `hi`; with `anchored`, zero counts as a value.
    pub fn plain(x: &[f32], hi: f32, anchored: bool) -> Line {
        let start = if anchored { 0.0 } else { x[0] };
        let low = x.iter().fold(start, |m, &v| m.min(v));
        let high = x.iter().fold(start, |m, &v| m.max(v));
        Line { scale: (high - low) / hi, low }
    }

    /// The codes of values.
    pub fn codes<const N: usize>(&self, x: &[f32; N], hi: f32) -> [u8; N] {
        let inv = inverse(self.scale);
        let mut out = [0; N];
        for i in 0..N {
            out[i] = nearest_whole((x[i] - self.low) * inv, 0.0, hi) as i32 as u8;
        }
        out
    }

    /// The line of least squares through the codes of a trial. With `anchored`, code 0 stays at or below
    /// `zero`.
    fn fit(all: &Moments, t: &Trial, anchored: bool, zero: f32) -> Line {
        let det = all.w * t.qq - t.q * t.q;
        let scale = (all.w * t.xq - t.q * all.x) / det;
        let low = (all.x - scale * t.q) / all.w;
        if anchored && low > zero {
            Line { scale: (t.xq - zero * t.q) / t.qq, low: zero }
        } else {
            Line { scale, low }
        }
    }

    /// By how much the line of [`Line::fit`] reduces Σwx²; 0 if it would not rise or does not exist.
    #[inline(always)]
    fn gain(all: &Moments, t: &Trial, anchored: bool, zero: f32) -> f32 {
        let det = all.w * t.qq - t.q * t.q;
        let slope = all.w * t.xq - t.q * all.x;
        let free = all.x * all.x / all.w + slope * slope / (all.w * det);
        // Shifted by `zero`, the anchored line passes through the origin.
        let xq = t.xq - zero * t.q;
        let held = zero * (2.0 * all.x - zero * all.w) + xq * xq / t.qq;
        // The free line starts at (x − slope/det·q)/w.
        let above = (all.x - zero * all.w) * det > slope * t.q;
        let gain = if anchored & above { held } else { free };
        let rises = if anchored & above { xq > 0.0 } else { slope > 0.0 };
        if (det > 0.0) & rises { gain } else { 0.0 }
    }
}

/// Sums over the values.
pub fn moments<const N: usize>(part: Part<N>) -> Moments {
    let ones = [1.0; N];
    Moments { w: dot(part.w, &ones), x: dot(part.w, part.x) }
}

/// Quantises with a line and returns the sums. Inlined so that a caller pays only for the sums it reads.
#[inline(always)]
pub fn trial<const N: usize>(part: Part<N>, line: Line, hi: f32) -> Trial {
    let (inv, scale, low) = (inverse(line.scale), line.scale, line.low);
    let q = each(part.x, |v| nearest_whole((v - low) * inv, 0.0, hi));
    let wq = times(part.w, &q);
    let mut e = *part.x;
    for i in 0..N {
        e[i] -= scale * q[i] + low;
    }
    Trial { error: dot(&times(part.w, &e), &e), q: dot(part.w, &q), qq: dot(&wq, &q), xq: dot(&wq, part.x) }
}

/// The sums of [`trial`], without the error, of several lines at once: a lane of a vector register is a line.
fn scan<const N: usize>(part: Part<N>, lines: &[Line; TRIED], hi: f32) -> [Trial; TRIED] {
    let mut inverses = [0.0; TRIED];
    let mut lows = [0.0; TRIED];
    for k in 0..TRIED {
        (inverses[k], lows[k]) = (inverse(lines[k].scale), lines[k].low);
    }
    let mut codes = [[0.0; TRIED]; N];
    for (codes, &x) in codes.iter_mut().zip(part.x) {
        for k in 0..TRIED {
            codes[k] = nearest_whole((x - lows[k]) * inverses[k], 0.0, hi);
        }
    }
    // One loop per sum: in a single loop, compilers interleave the sums with shuffles.
    let (mut q, mut qq, mut xq) = ([0.0; TRIED], [0.0; TRIED], [0.0; TRIED]);
    for (codes, &w) in codes.iter().zip(part.w) {
        for k in 0..TRIED {
            q[k] += w * codes[k];
        }
    }
    for (codes, &w) in codes.iter().zip(part.w) {
        for k in 0..TRIED {
            qq[k] += w * codes[k] * codes[k];
        }
    }
    for (codes, &wx) in codes.iter().zip(&times(part.w, part.x)) {
        for k in 0..TRIED {
            xq[k] += wx * codes[k];
        }
    }
    std::array::from_fn(|k| Trial { error: 0.0, q: q[k], qq: qq[k], xq: xq[k] })
}

/// A good unrounded line. With `anchored`, `low` is never above zero.
///
/// A coarse scan over narrower ranges that keep either end of the values, each judged by the least error
/// its codes can reach when the line is then fitted to them.
pub fn search<const N: usize>(part: Part<N>, hi: f32, anchored: bool) -> Line {
    let plain = Line::plain(part.x, hi, anchored);
    if plain.scale == 0.0 {
        return plain;
    }
    let moved = each(part.x, |v| v - plain.low);
    let part = Part { x: &moved, w: part.w };
    let (all, zero) = (moments(part), -plain.low);
    let mut best = (Line { scale: plain.scale, low: 0.0 }, 0.0);
    let scale = |k: usize| plain.scale / (1.0 + SPACING / hi * (k as f32 - ABOVE_PLAIN));
    for keep_top in [0.0, hi] {
        let line = |k| Line { scale: scale(k), low: (plain.scale - scale(k)) * keep_top };
        let tried = scan(part, &std::array::from_fn(line), hi);
        let mut gains = [0.0; TRIED];
        for k in 0..TRIED {
            gains[k] = Line::gain(&all, &tried[k], anchored, zero);
        }
        for k in 0..TRIED {
            if gains[k] > best.1 {
                best = (Line::fit(&all, &tried[k], anchored, zero), gains[k]);
            }
        }
    }
    for _ in 0..2 {
        let t = trial(part, best.0, hi);
        let gain = Line::gain(&all, &t, anchored, zero);
        if gain <= best.1 {
            break;
        }
        best = (Line::fit(&all, &t, anchored, zero), gain);
    }
    Line { scale: best.0.scale, low: best.0.low + plain.low }
}

/// The line of least squared error whose scale and low are both f16; `None` if the plain one is out of range.
pub fn search_f16<const N: usize>(part: Part<N>, hi: f32) -> Option<Line> {
    // Unlike a scale, an offset may become zero.
    let narrow_low = |low: f32| Some(f16::from_f32(low).to_f32()).filter(|low| low.is_finite());
    let narrow = |line: Line| Some(Line { scale: to_f16(line.scale)?, low: narrow_low(line.low)? });
    let plain = narrow(Line::plain(part.x, hi, false))?;
    let (mut best, mut least) = (plain, trial(part, plain, hi).error);
    let Some(mut line) = narrow(search(part, hi, false)) else { return Some(best) };
    let all = moments(part);
    // Rounding the scale leaves an error that the offset can partly absorb.
    for _ in 0..2 {
        let t = trial(part, line, hi);
        if t.error < least {
            (best, least) = (line, t.error);
        }
        let Some(low) = narrow_low((all.x - line.scale * t.q) / all.w) else { break };
        line.low = low;
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_grid_is_found() {
        let x: [f32; 32] = std::array::from_fn(|i| (i % 16) as f32 * 0.25 - 1.5);
        let part = Part { x: &x, w: &[1.0; 32] };
        for line in [search(part, 15.0, true), search_f16(part, 15.0).unwrap()] {
            assert!(trial(part, line, 15.0).error < 1e-10, "{line:?}");
        }
    }

    #[test]
    fn a_small_spread_far_from_zero_is_kept() {
        let x: [f32; 32] = std::array::from_fn(|i| 1000.0 + (i % 16) as f32 / 16.0);
        let line = search(Part { x: &x, w: &[1.0; 32] }, 15.0, false);
        assert!(trial(Part { x: &x, w: &[1.0; 32] }, line, 15.0).error < 1e-6, "{line:?}");
    }
}
