//! How one value becomes a cache element, defined once. Backends round to the same bits, so that a
//! snapshot means the same on all of them. Knows no layout.

use half::{bf16, f16};
use mambo_tensor::{DType, F8_E4M3_MAX, decode_row, f8_e4m3};

/// Largest finite f16.
pub const F16_MAX: f32 = 65504.0;
/// Smallest f16 with all its digits.
pub const F16_MIN_NORMAL: f32 = 1.0 / 16384.0;
/// Largest f8 (e4m3).
pub const E4M3_MAX: f32 = F8_E4M3_MAX;
/// Smallest f8 (e4m3) with all its digits.
pub const E4M3_MIN_NORMAL: f32 = 1.0 / 64.0;
/// Cached keys or values that share one scale in an 8-bit block.
pub const KV_BLOCK: usize = 32;
/// Largest code of an 8-bit block.
pub const Q8_MAX: f32 = 127.0;

/// Nearest f16, ties to even; infinite beyond its range.
pub fn f16_bits(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// The value of an f16.
pub fn f16_value(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// Nearest bf16, ties to even; one NaN for all.
pub fn bf16_bits(value: f32) -> u16 {
    if value.is_nan() { 0x7fc0 } else { bf16::from_f32(value).to_bits() }
}

/// The value of a bf16.
pub fn bf16_value(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

/// One of the two f16 next to a value, the upper one with the probability of the value's distance to the
/// lower: what a sum gains in many small steps is not rounded away. Values beyond the range become its ends.
///
/// The top thirteen bits of `random`, added below the last digit kept, decide. Subnormal results have their
/// last digit at a fixed place, which adding the smallest normal number brings to where the others have it.
pub fn f16_stochastic(value: f32, random: u32) -> u16 {
    if value.is_nan() {
        return 0x7e00;
    }
    let size = value.abs().min(F16_MAX);
    let offset = if size < F16_MIN_NORMAL { F16_MIN_NORMAL } else { 0.0 };
    let bits = (size + offset).to_bits() + (random >> 19);
    let kept = f32::from_bits(bits & !0x1fff) - offset;
    f16_bits(kept.copysign(value))
}

/// Spreads every bit of a number over all bits of the result.
pub fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(MIX[0]);
    let x = (x ^ (x >> 13)).wrapping_mul(MIX[1]);
    x ^ (x >> 16)
}

/// The two factors of the mixing.
pub const MIX: [u32; 2] = [0x85eb_ca6b, 0xc2b2_ae35];
/// What an element's index is multiplied with before mixing.
pub const SPREAD: u32 = 0x9e37_79b9;

/// Where the random bits of one head's state at the start of a chunk begin. They depend on the place alone,
/// so that a sequence gets the same ones however it came there.
pub fn state_seed(layer: usize, head: usize, chunk: usize) -> u32 {
    [layer, head, chunk].into_iter().fold(SPREAD, |seed, n| mix(seed ^ n as u32).wrapping_add(SPREAD))
}

/// Random bits of one element, counted `[state][head_dim]` within its head.
pub fn state_random(seed: u32, element: usize) -> u32 {
    mix((element as u32).wrapping_mul(SPREAD).wrapping_add(seed))
}

/// Nearest f8 (e4m3), ties to even; the largest beyond its range.
pub fn e4m3_code(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    f8_e4m3(value.clamp(-E4M3_MAX, E4M3_MAX)).expect("the value is in range")
}

/// The value of an f8 (e4m3).
pub fn e4m3_value(code: u8) -> f32 {
    let mut value = [0.0];
    decode_row(DType::F8E4M3, &[code], &mut value).expect("one byte is one f8");
    value[0]
}

/// The scale of an 8-bit block as bf16 bits, from its largest magnitude and a number that is zero unless the
/// block holds something infinite or no number; then the scale is NaN, and so is all the block stands for.
pub fn q8_scale(largest: f32, poison: f32) -> u16 {
    bf16_bits(largest / Q8_MAX + poison)
}

/// What values are multiplied with to become codes, from the scale as it is stored.
pub fn q8_inverse(scale: u16) -> f32 {
    let scale = bf16_value(scale);
    if scale > f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 }
}

/// Codes of up to [`KV_BLOCK`] values, and their scale: `value ≈ code · scale`.
pub fn q8_block(values: &[f32], codes: &mut [u8]) -> u16 {
    debug_assert!(values.len() <= KV_BLOCK && values.len() == codes.len());
    let largest = values.iter().fold(0f32, |m, v| if v.abs() > m { v.abs() } else { m });
    let poison = if values.iter().all(|v| v.is_finite()) { 0.0 } else { f32::NAN };
    let scale = q8_scale(largest, poison);
    let inverse = q8_inverse(scale);
    for (code, value) in codes.iter_mut().zip(values) {
        let exact = value * inverse;
        // Written so that NaN has a code, too.
        let low = if exact > -Q8_MAX { exact } else { -Q8_MAX };
        *code = low.min(Q8_MAX).round_ties_even() as i8 as u8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stochastic_rounding_takes_a_neighbour_and_is_right_on_average() {
        for value in [1.0f32, 1.000_3, -0.333_333_34, 1e-7, 3e-6, -6.1e-5, 777.123, 65503.0, 1e9, 0.0, -0.0] {
            let clamped = value.clamp(-F16_MAX, F16_MAX);
            let ulp = (clamped.abs() / 1024.0).max(2f32.powi(-24));
            let (mut sum, count) = (0.0, 20_000);
            for i in 0..count {
                let got = f16_value(f16_stochastic(value, state_random(7, i)));
                assert!((got - clamped).abs() < ulp, "{value} became {got}");
                assert_eq!(got.is_sign_negative(), value.is_sign_negative());
                sum += f64::from(got);
            }
            let off = (sum / count as f64 - f64::from(clamped)).abs();
            assert!(off < 0.02 * f64::from(ulp), "{value} is off by {off} on average");
        }
        assert!(f16_value(f16_stochastic(f32::NAN, 9)).is_nan());
        assert_eq!(f16_value(f16_stochastic(f32::NEG_INFINITY, u32::MAX)), -F16_MAX);
    }

    #[test]
    fn values_that_fit_are_kept_whatever_the_random_bits() {
        for bits in (0..=0x7bff_u16).chain(0x8000..=0xfbff) {
            for random in [0, u32::MAX] {
                assert_eq!(f16_stochastic(f16_value(bits), random), bits);
            }
        }
        for code in (0..=0x7e_u8).chain(0x80..=0xfe) {
            assert_eq!(e4m3_code(e4m3_value(code)), code);
        }
    }

    #[test]
    fn random_bits_differ_between_places_and_spread_evenly() {
        let seeds = [state_seed(0, 0, 1), state_seed(0, 1, 0), state_seed(1, 0, 0), state_seed(0, 0, 2)];
        assert!(seeds.iter().enumerate().all(|(i, s)| !seeds[..i].contains(s)));
        let mut counts = [0; 16];
        for seed in seeds {
            (0..4096).for_each(|i| counts[(state_random(seed, i) >> 28) as usize] += 1);
        }
        assert!(counts.iter().all(|c| (924..1124).contains(c)), "{counts:?}");
    }

    #[test]
    fn eight_bit_floats_round_to_the_nearest() {
        let pairs =
            [(1.0, 1.0), (1.06, 1.0), (1.07, 1.125), (1.0625, 1.0), (1.1875, 1.25), (0.015, 0.015_625)];
        for (value, want) in pairs.into_iter().chain([(1e9, 448.0), (0.001, 0.001_953_125), (0.0009, 0.0)]) {
            assert_eq!(e4m3_value(e4m3_code(value)), want, "{value}");
            assert_eq!(e4m3_value(e4m3_code(-value)), -want, "-{value}");
        }
        assert!(e4m3_value(e4m3_code(f32::NAN)).is_nan());
    }

    #[test]
    fn a_block_is_within_half_a_code_and_extremes_are_seen() {
        let values: Vec<f32> = (0..32).map(|i| (i as f32 - 11.5) * 0.37).collect();
        for factor in [1.0, 1e-30, 1e30] {
            let values: Vec<f32> = values.iter().map(|v| v * factor).collect();
            let mut codes = [0; 32];
            let scale = bf16_value(q8_block(&values, &mut codes));
            for (value, code) in values.iter().zip(codes) {
                // The largest may lose half of the scale's rounding on top.
                assert!((f32::from(code as i8) * scale - value).abs() <= 0.502 * scale, "{value}");
            }
        }
        let mut codes = [9; 3];
        assert_eq!((q8_block(&[0.0, -0.0, 0.0], &mut codes), codes), (0, [0; 3]));
        assert_eq!((q8_block(&[1e-40; 3], &mut codes), codes), (bf16_bits(1e-40 / 127.0), [0; 3]));
        for odd in [f32::NAN, f32::INFINITY] {
            assert!(bf16_value(q8_block(&[1.0, odd, 2.0], &mut codes)).is_nan());
        }
    }
}
