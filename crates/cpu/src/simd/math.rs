//! Elementary functions over vectors, within a few ulp, and sums in a fixed order.
//!
//! One algorithm for all instruction sets, built from operations that round identically, so that a value does not
//! depend on the lane or the machine that computes it. A scalar is a vector of which one lane is used.

use super::{LANES, Simd, part, vectors};

/// ln 2 in two parts: the first has so few bits that its products with small integers are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// The elementary functions, for every [`Simd`].
pub(crate) trait Math: Simd {
    /// eˣ = 2ⁿ·eʳ with |r| ≤ ln2/2, and 2ⁿ in two factors so that the result may be subnormal.
    #[inline(always)]
    fn exp(x: Self::F) -> Self::F {
        // The bound is the first argument: NaN passes through.
        let x = Self::min(Self::splat(88.8), Self::max(Self::splat(-104.0), x));
        let (y, n) = Self::exp_parts(x);
        let half = Self::isar::<1>(n);
        let rest = Self::isub(n, half);
        Self::mul(Self::mul(y, Self::power_of_two(half)), Self::power_of_two(rest))
    }

    /// eˣ for x up to 88, flushed to zero below 2^-126.5: cheaper than [`Math::exp`].
    #[inline(always)]
    fn exp_of_small(x: Self::F) -> Self::F {
        let x = Self::max(Self::splat(-88.0), x);
        let (y, n) = Self::exp_parts(x);
        Self::mul(y, Self::power_of_two(n))
    }

    /// y and n with eˣ = y·2ⁿ and y between √½ and √2.
    #[inline(always)]
    fn exp_parts(x: Self::F) -> (Self::F, Self::I) {
        let n = Self::round(Self::mul(x, Self::splat(std::f32::consts::LOG2_E)));
        let r = Self::fma(n, Self::splat(-LN2_HIGH), x);
        let r = Self::fma(n, Self::splat(-LN2_LOW), r);
        let mut p = Self::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = Self::fma(p, r, Self::splat(c));
        }
        (Self::add(Self::fma(p, Self::mul(r, r), r), Self::splat(1.0)), Self::to_int(n))
    }

    /// 2ⁿ for exponents of normal numbers, and zero for n = -127.
    #[inline(always)]
    fn power_of_two(n: Self::I) -> Self::F {
        Self::from_bits(Self::ishl::<23>(Self::iadd(n, Self::isplat(127))))
    }

    /// ln x for normal x.
    #[inline(always)]
    fn ln(x: Self::F) -> Self::F {
        let bits = Self::bits(x);
        // Exponent of x / √½.
        let e = Self::isar::<23>(Self::isub(bits, Self::isplat(0x3f35_04f3)));
        let m = Self::from_bits(Self::isub(bits, Self::ishl::<23>(e)));
        let e = Self::to_float(e);
        let f = Self::sub(m, Self::splat(1.0));
        let z = Self::mul(f, f);
        let mut p = Self::splat(7.037_683_6e-2);
        for c in [
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ] {
            p = Self::fma(p, f, Self::splat(c));
        }
        let y = Self::mul(Self::mul(p, z), f);
        let y = Self::fma(e, Self::splat(LN2_LOW), y);
        let y = Self::fma(z, Self::splat(-0.5), y);
        Self::fma(e, Self::splat(LN2_HIGH), Self::add(f, y))
    }

    /// 1 / (1 + e⁻ˣ).
    #[inline(always)]
    fn sigmoid(x: Self::F) -> Self::F {
        let e = Self::exp(Self::sub(Self::zero(), x));
        Self::div(Self::splat(1.0), Self::add(Self::splat(1.0), e))
    }

    /// x · sigmoid(x).
    #[inline(always)]
    fn silu(x: Self::F) -> Self::F {
        let e = Self::exp(Self::sub(Self::zero(), x));
        Self::div(x, Self::add(Self::splat(1.0), e))
    }

    /// ln(1 + eˣ), and x itself above 20.
    #[inline(always)]
    fn softplus(x: Self::F) -> Self::F {
        let one = Self::splat(1.0);
        let e = Self::exp(x);
        let u = Self::add(one, e);
        // The factor e/(u-1) compensates for the rounding of 1 + e.
        let wide = Self::mul(Self::ln(u), Self::div(e, Self::sub(u, one)));
        let y = Self::select_gt(u, one, wide, e);
        Self::select_gt(x, Self::splat(20.0), x, y)
    }

    /// |x|.
    #[inline(always)]
    fn abs(x: Self::F) -> Self::F {
        Self::from_bits(Self::iand(Self::bits(x), Self::isplat(i32::MAX)))
    }

    /// Hyperbolic tangent: an odd polynomial near zero, beyond it `1 - 2/(e²ˣ + 1)` with the sign of x.
    #[inline(always)]
    fn tanh(x: Self::F) -> Self::F {
        let (one, two) = (Self::splat(1.0), Self::splat(2.0));
        let z = Self::mul(x, x);
        let mut p = Self::splat(-5.704_988_7e-3);
        for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
            p = Self::fma(p, z, Self::splat(c));
        }
        let near = Self::fma(Self::mul(p, z), x, x);
        let size = Self::abs(x);
        let far = Self::sub(one, Self::div(two, Self::add(Self::exp(Self::add(size, size)), one)));
        let sign = Self::iand(Self::bits(x), Self::isplat(i32::MIN));
        let far = Self::from_bits(Self::ixor(Self::bits(far), sign));
        Self::select_gt(Self::splat(0.625), size, near, far)
    }

    /// `cap · tanh(x / cap)`.
    #[inline(always)]
    fn soft_cap(x: Self::F, cap: f32) -> Self::F {
        Self::mul(Self::tanh(Self::mul(x, Self::splat(1.0 / cap))), Self::splat(cap))
    }

    /// The normal distribution, `(1 + erf(x/√2)) / 2`. With a = |x| and t = 1/(1 + 0.35·a), `exp(a²/2) · Φ(-a)` is t
    /// times a polynomial in t; its relative error is 4e-8, so that the tail has all its digits.
    #[inline(always)]
    fn normal_cdf(x: Self::F) -> Self::F {
        let one = Self::splat(1.0);
        // Beyond 15 the tail is zero. The bound is the first argument: NaN passes through.
        let size = Self::min(Self::splat(15.0), Self::abs(x));
        let t = Self::div(one, Self::fma(size, Self::splat(0.35), one));
        let mut p = Self::splat(-2.977_044e-2);
        for c in [
            1.469_509_2e-1,
            -2.617_126_7e-1,
            1.658_018e-1,
            -2.748_289e-2,
            1.072_627_7e-1,
            1.194_170_4e-1,
            1.399_148e-1,
            1.396_186_4e-1,
        ] {
            p = Self::fma(p, t, Self::splat(c));
        }
        // The square in two parts, of which the second is small.
        let square = Self::mul(size, size);
        let rest = Self::fma(size, size, Self::sub(Self::zero(), square));
        let power = Self::exp(Self::mul(square, Self::splat(-0.5)));
        let power = Self::fma(Self::mul(rest, Self::splat(-0.5)), power, power);
        let tail = Self::mul(Self::mul(p, t), power);
        Self::select_gt(x, Self::zero(), Self::sub(one, tail), tail)
    }

    /// Sine and cosine of `quarters + rest` quarter turns: quarters are integers, of which only the last two bits
    /// count, and rests lie within ±½.
    #[inline(always)]
    fn sin_cos(quarters: Self::I, rest: Self::F) -> (Self::F, Self::F) {
        let one = Self::splat(1.0);
        let x = Self::mul(rest, Self::splat(std::f32::consts::FRAC_PI_2));
        let z = Self::mul(x, x);
        let mut s = Self::splat(-1.951_529_6e-4);
        for c in [8.332_161e-3, -1.666_665_5e-1] {
            s = Self::fma(s, z, Self::splat(c));
        }
        let s = Self::fma(Self::mul(s, z), x, x);
        let mut c = Self::splat(2.443_315_7e-5);
        for k in [-1.388_731_6e-3, 4.166_664_6e-2] {
            c = Self::fma(c, z, Self::splat(k));
        }
        let c = Self::fma(Self::mul(c, z), z, Self::fma(z, Self::splat(-0.5), one));
        let odd = Self::to_float(Self::iand(quarters, Self::isplat(1)));
        let half = Self::splat(0.5);
        let (sin, cos) = (Self::select_gt(odd, half, c, s), Self::select_gt(odd, half, s, c));
        // Bit 1 of the quarters, and of the quarters plus one, as the sign.
        let sign_bit = Self::isplat(i32::MIN);
        let sin_sign = Self::iand(Self::ishl::<30>(quarters), sign_bit);
        let cos_sign = Self::iand(Self::ishl::<30>(Self::iadd(quarters, Self::isplat(1))), sign_bit);
        let sin = Self::from_bits(Self::ixor(Self::bits(sin), sin_sign));
        (sin, Self::from_bits(Self::ixor(Self::bits(cos), cos_sign)))
    }

    /// max(x, 0)².
    #[inline(always)]
    fn relu2(x: Self::F) -> Self::F {
        let x = Self::max(Self::zero(), x);
        Self::mul(x, x)
    }

    /// eˣ of one value.
    #[inline(always)]
    fn exp1(x: f32) -> f32 {
        Self::lane0(Self::exp(Self::splat(x)))
    }

    /// Σ x, consecutive vectors going round-robin into four sums.
    #[inline(always)]
    fn total(x: &[f32]) -> f32 {
        let mut sums = [Self::zero(); 4];
        for i in 0..vectors(x.len()) {
            sums[i % 4] = Self::add(Self::load_part(part(x, i)), sums[i % 4]);
        }
        Self::sum(Self::add(Self::add(sums[0], sums[1]), Self::add(sums[2], sums[3])))
    }

    /// Σ a·b, consecutive vectors going round-robin into four sums.
    #[inline(always)]
    fn inner(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        let mut sums = [Self::zero(); 4];
        let (a4, a_rest) = a.as_chunks::<{ 4 * LANES }>();
        let (b4, b_rest) = b.as_chunks::<{ 4 * LANES }>();
        for (a, b) in a4.iter().zip(b4) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = Self::fma(Self::load_part(part(a, i)), Self::load_part(part(b, i)), *sum);
            }
        }
        for i in 0..vectors(a_rest.len()) {
            sums[i] = Self::fma(Self::load_part(part(a_rest, i)), Self::load_part(part(b_rest, i)), sums[i]);
        }
        Self::sum(Self::add(Self::add(sums[0], sums[1]), Self::add(sums[2], sums[3])))
    }
}

impl<S: Simd> Math for S {}

/// Σ x², as [`Math::inner`] of x with itself.
#[inline(always)]
pub(crate) fn square_sum<S: Simd>(x: &[f32]) -> f32 {
    S::inner(x, x)
}

#[cfg(test)]
mod tests {
    use super::super::Portable;
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        let want32 = want as f32;
        if got == want32 {
            return 0.0;
        }
        let ulp = (f64::from(f32::from_bits(want32.abs().to_bits() + 1)) - f64::from(want32.abs())).abs();
        (f64::from(got) - want).abs() / ulp
    }

    fn worst(f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, lo: f32, hi: f32) -> f64 {
        let steps = 20_000;
        (0..=steps)
            .map(|i| lo + (hi - lo) * i as f32 / steps as f32)
            .map(|x| ulps(f(x), want(f64::from(x))))
            .fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_accurate() {
        type P = Portable;
        let one = |f: fn([f32; 16]) -> [f32; 16]| move |x| f([x; 16])[3];
        assert!(worst(one(P::exp), f64::exp, -87.0, 88.0) < 1.5);
        assert!(worst(one(P::exp_of_small), f64::exp, -87.0, 88.0) < 1.5);
        assert!(worst(one(P::softplus), |x| x.exp().ln_1p(), -80.0, 20.0) < 3.0);
        assert!(worst(one(P::sigmoid), |x| 1.0 / (1.0 + (-x).exp()), -80.0, 30.0) < 3.0);
        assert!(worst(one(P::silu), |x| x / (1.0 + (-x).exp()), -80.0, 30.0) < 3.0);
        assert!(worst(one(P::tanh), f64::tanh, -12.0, 12.0) < 2.5);
        assert!(worst(one(P::tanh), f64::tanh, -0.7, 0.7) < 2.5);
    }

    #[test]
    fn sine_and_cosine_are_accurate_in_every_quarter() {
        for quarter in -5..=5 {
            let rotated = |rest: f32, which: usize| {
                let (sin, cos) = Portable::sin_cos([quarter; 16], [rest; 16]);
                [sin[3], cos[3]][which]
            };
            let angle = |rest: f64| (f64::from(quarter) + rest) * std::f64::consts::FRAC_PI_2;
            for i in 0..=1000 {
                let rest = i as f32 / 1000.0 - 0.5;
                let (sin, cos) = angle(f64::from(rest)).sin_cos();
                assert!((f64::from(rotated(rest, 0)) - sin).abs() < 1.2e-7, "sine of {quarter} + {rest}");
                assert!((f64::from(rotated(rest, 1)) - cos).abs() < 1.2e-7, "cosine of {quarter} + {rest}");
            }
        }
    }

    /// Φ(x) from its series, which converges fast enough up to 4.
    fn normal_cdf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= x * x / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
    }

    #[test]
    fn the_normal_distribution_is_accurate_and_has_a_tail() {
        let got = |x: f32| Portable::normal_cdf([x; 16])[3];
        assert!(worst(got, normal_cdf, -4.0, 4.0) < 7.0);
        for (x, want) in [(-6.0, 9.865_876_45e-10), (-9.0, 1.128_588_41e-19), (-12.0, 1.776_482_11e-33)] {
            assert!((f64::from(got(x)) / want - 1.0).abs() < 1e-6, "{x}: {}", got(x));
        }
        assert_eq!([got(-15.0), got(f32::NEG_INFINITY), got(f32::INFINITY)], [0.0, 0.0, 1.0]);
        assert!(got(f32::NAN).is_nan() && Portable::tanh([f32::NAN; 16])[0].is_nan());
        assert_eq!(Portable::tanh([f32::NEG_INFINITY; 16])[0], -1.0);
    }

    #[test]
    fn extremes_stay_in_bounds() {
        type P = Portable;
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, -0.0, 0.0, 21.0];
        let mut lanes = [0.0; 16];
        lanes[..8].copy_from_slice(&x);
        let e = P::exp(lanes);
        assert!(e[0].is_nan() && e[1] == f32::INFINITY && e[2] == 0.0 && e[3] == f32::INFINITY);
        assert_eq!(e[4..7], [0.0, 1.0, 1.0]);
        let e = P::exp_of_small(lanes);
        assert!(e[0].is_nan());
        assert_eq!([e[2], e[4], e[5], e[6]], [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(P::exp_of_small([-88.0; 16]), [0.0; 16]);
        let s = P::softplus(lanes);
        assert!(s[0].is_nan() && s[1] == f32::INFINITY && s[2] == 0.0 && s[4] == 0.0 && s[7] == 21.0);
        assert_eq!(P::exp1(-103.0), f32::from_bits(1));
    }
}
