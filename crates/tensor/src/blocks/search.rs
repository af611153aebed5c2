//! Scale search for the encoders: which scale gives the least squared error.
//!
//! Every search also tries the plain choice (the largest value on the last code), so it never does worse.
//! All values count alike: without knowing the activations, the error of a product is the error of the
//! weights. Sums run in fixed lanes, so results do not depend on the machine.

use half::f16;

const LANES: usize = 4;

/// Coarse steps tried below and above the plain scale.
const STEPS_BELOW: i32 = 5;
const STEPS_ABOVE: i32 = 10;

/// Rounds to nearest even, for |v| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
#[inline(always)]
pub fn round(v: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (v + MAGIC) - MAGIC
}

/// The code of `value` among the whole numbers `lo..=hi` under the inverse scale `inv`.
#[inline(always)]
pub fn code(value: f32, inv: f32, lo: f32, hi: f32) -> f32 {
    // Written as comparisons because these are single instructions; `max` and `min` care for NaN.
    let scaled = value * inv;
    let above = if scaled > lo { scaled } else { lo };
    round(if above < hi { above } else { hi })
}

/// `1 / scale`, and 0 where that is no use: a zero scale stores zeros.
#[inline(always)]
pub fn inverse(scale: f32) -> f32 {
    if scale.abs() < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}

/// The nearest f16, as f32; `None` beyond its range. What would vanish becomes the smallest f16 instead:
/// with it a block of tiny values keeps its signs.
pub fn to_f16(scale: f32) -> Option<f32> {
    let rounded = f16::from_f32(scale).to_f32();
    if rounded == 0.0 && scale != 0.0 {
        return Some(f16::from_bits(1).to_f32().copysign(scale));
    }
    rounded.is_finite().then_some(rounded)
}

/// Sums of one trial quantisation with codes `q`.
#[derive(Clone, Copy, Default)]
pub struct Sums {
    /// Squared error.
    pub error: f32,
    /// Σ x·q
    pub xq: f32,
    /// Σ q²
    pub qq: f32,
    /// Σ q
    pub q: f32,
}

/// Quantises `x ≈ scale·q − min` and sums up. `N` is a multiple of the lanes.
#[inline(always)]
pub fn trial<const N: usize>(x: &[f32; N], scale: f32, min: f32, (lo, hi): (f32, f32)) -> Sums {
    let inv = inverse(scale);
    let (mut error, mut xq, mut qq, mut qs) = ([0f32; LANES], [0f32; LANES], [0f32; LANES], [0f32; LANES]);
    for chunk in x.as_chunks::<LANES>().0 {
        // One short loop per sum: that is the form compilers turn into vector instructions.
        let q = chunk.map(|v| code(v + min, inv, lo, hi));
        let e: [f32; LANES] = std::array::from_fn(|l| chunk[l] - (scale * q[l] - min));
        error = std::array::from_fn(|l| error[l] + e[l] * e[l]);
        xq = std::array::from_fn(|l| xq[l] + chunk[l] * q[l]);
        qq = std::array::from_fn(|l| qq[l] + q[l] * q[l]);
        qs = std::array::from_fn(|l| qs[l] + q[l]);
    }
    let sum = |lanes: [f32; LANES]| lanes.iter().sum::<f32>();
    Sums { error: sum(error), xq: sum(xq), qq: sum(qq), q: sum(qs) }
}

/// The value of the largest magnitude, with its sign.
pub fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |m, &v| if v.abs() > m.abs() { v } else { m })
}

/// A good unrounded scale for `x ≈ scale·q`, `q` in `lo..=hi`.
///
/// A coarse scan over scales, each judged by the least error its codes can reach when the scale is then
/// fitted to them: Σx² − (Σxq)²/Σq².
pub fn symmetric_scale<const N: usize>(x: &[f32; N], range: (f32, f32)) -> f32 {
    let (lo, hi) = range;
    let plain = extreme(x) / lo;
    if plain == 0.0 {
        return 0.0;
    }
    // With as many codes on either side, mirrored scales give mirrored codes.
    let signs: &[f32] = if lo == -hi { &[1.0] } else { &[1.0, -1.0] };
    let step = 0.3 / -lo;
    let (mut best, mut best_gain) = (plain, 0.0);
    for &sign in signs {
        for k in -STEPS_BELOW..=STEPS_ABOVE {
            let scale = sign * plain / (1.0 + step * k as f32);
            let s = trial(x, scale, 0.0, range);
            if s.qq > 0.0 && s.xq * s.xq > best_gain * s.qq {
                best_gain = s.xq * s.xq / s.qq;
                best = s.xq / s.qq;
            }
        }
    }
    best
}

/// The f16 scale with the least squared error for `x ≈ scale·q`; `None` when the plain one is beyond f16.
pub fn symmetric_f16<const N: usize>(x: &[f32; N], range: (f32, f32)) -> Option<f32> {
    let mut best = to_f16(extreme(x) / range.0)?;
    let mut best_error = trial(x, best, 0.0, range).error;
    let mut scale = symmetric_scale(x, range);
    // Rounding the scale moves some codes; a second fit takes up the slack.
    for _ in 0..2 {
        let Some(rounded) = to_f16(scale) else { break };
        let s = trial(x, rounded, 0.0, range);
        if s.error < best_error {
            (best, best_error) = (rounded, s.error);
        }
        if s.qq == 0.0 {
            break;
        }
        scale = s.xq / s.qq;
    }
    Some(best)
}

/// A good unrounded `(scale, min)` for `x ≈ scale·q − min`, `q` in `0..=hi`, neither negative.
pub fn affine_scale<const N: usize>(x: &[f32; N], hi: f32) -> (f32, f32) {
    let plain = affine_plain(x, hi);
    if plain.0 == 0.0 {
        return plain;
    }
    let sum_x: f32 = x.iter().sum();
    let (mut best, mut best_error) = (plain, trial(x, plain.0, plain.1, (0.0, hi)).error);
    for k in -STEPS_BELOW..=STEPS_ABOVE {
        let mut scale = plain.0 / (1.0 + 0.6 / hi * k as f32);
        let mut min = plain.1;
        for _ in 0..2 {
            let s = trial(x, scale, min, (0.0, hi));
            if s.error < best_error {
                (best, best_error) = ((scale, min), s.error);
            }
            let Some(fit) = affine_fit(&s, sum_x, N as f32) else { break };
            (scale, min) = fit;
        }
        let s = trial(x, scale, min, (0.0, hi));
        if s.error < best_error {
            (best, best_error) = ((scale, min), s.error);
        }
    }
    best
}

/// Smallest value (or zero) on code 0 and largest on code `hi`.
pub fn affine_plain(x: &[f32], hi: f32) -> (f32, f32) {
    let smallest = x.iter().fold(0f32, |m, &v| m.min(v));
    let largest = x.iter().fold(0f32, |m, &v| m.max(v));
    ((largest - smallest) / hi, -smallest)
}

/// Least squares of `x ≈ scale·q − min` for given codes; a negative `min` is held at zero.
fn affine_fit(s: &Sums, sum_x: f32, n: f32) -> Option<(f32, f32)> {
    let det = n * s.qq - s.q * s.q;
    let (mut scale, mut min) = ((n * s.xq - s.q * sum_x) / det, (s.q * s.xq - s.qq * sum_x) / det);
    if det <= 0.0 || !scale.is_finite() || !min.is_finite() {
        return None;
    }
    if min < 0.0 {
        (scale, min) = (s.xq / s.qq, 0.0);
    }
    (scale > 0.0).then_some((scale, min))
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
        let x: [f32; 32] = std::array::from_fn(|i| (i as f32 - 16.0) * 0.5 / 2.0);
        let d = symmetric_f16(&x, (-16.0, 15.0)).unwrap();
        assert_eq!(trial(&x, d, 0.0, (-16.0, 15.0)).error, 0.0);
        let y: [f32; 32] = std::array::from_fn(|i| (i % 16) as f32 * 0.25 - 1.5);
        let (scale, min) = affine_scale(&y, 15.0);
        assert!(trial(&y, scale, min, (0.0, 15.0)).error < 1e-10);
    }
}
