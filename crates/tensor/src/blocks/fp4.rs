//! The four-bit float `e2m1` that `mxfp4` and `nvfp4` share: sign, two exponent bits, one mantissa bit.

use super::search::Grid;

/// Twice the value of each code: integers, so that products with a halved scale are exact. Negative
/// zero is stored as a code but decodes to zero.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The largest value of a code.
pub const E2M1_MAX: f32 = 6.0;

/// The values of the codes; the one of negative zero is zero.
pub const E2M1: [f32; 16] = scaled(0.5);

/// Twice the values, as they are multiplied.
pub(super) const DOUBLED: [f32; 16] = scaled(1.0);

const fn scaled(factor: f32) -> [f32; 16] {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = E2M1_DOUBLED[i] as f32 * factor;
        i += 1;
    }
    values
}

/// The values as a grid to search on.
pub struct E2m1;

impl Grid for E2m1 {
    const FIRST: f32 = -E2M1_MAX;
    const BOTH_SIGNS: bool = false;
    const STEP: f32 = 0.1;

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        let a = v.abs();
        // Adding and subtracting 1.5 · 2^23 steps rounds to steps of 1/2, 1 and 2.
        let fine = if a < 2.0 { 6_291_456.0 } else { 12_582_912.0 };
        let magic = if a < 4.0 { fine } else { 25_165_824.0 };
        let rounded = (a + magic) - magic;
        (if rounded < E2M1_MAX { rounded } else { E2M1_MAX }).copysign(v)
    }
}

/// The codes of values under an inverse scale.
pub fn codes<const N: usize>(x: &[f32; N], inv: f32) -> [u8; N] {
    let mut out = [0; N];
    for i in 1..8 {
        let middle = (DOUBLED[i - 1] + DOUBLED[i]) / 4.0;
        for (out, x) in out.iter_mut().zip(x) {
            *out += u8::from((x * inv).abs() > middle);
        }
    }
    for (out, x) in out.iter_mut().zip(x) {
        // Zero has two codes; the plain one is stored.
        *out |= u8::from(*x * inv < 0.0 && *out > 0) << 3;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_value_is_found() {
        for v in (-800..800).map(|i| i as f32 / 100.0 + 0.001) {
            let distance = |d: f32| (d / 2.0 - v).abs();
            let best = DOUBLED.into_iter().fold(f32::INFINITY, |m, d| m.min(distance(d)));
            assert_eq!(distance(2.0 * E2m1::nearest(v)), best, "{v}");
            assert_eq!(DOUBLED[usize::from(codes(&[v], 1.0)[0])], 2.0 * E2m1::nearest(v), "{v}");
        }
    }
}
