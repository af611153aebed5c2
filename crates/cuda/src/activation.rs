//! Activation types that only this backend knows: rows of scaled f16, and sums of two bf16.
//!
//! An `f16` row is f16 values, zeros up to a multiple of [`TILE_COLS`], then one f32 scale that all are multiplied
//! with. The scale is a power of two that brings the largest magnitude of the row to `[2^14, 2^15)`: no value
//! overflows, and scaling rounds nothing. It is at least 2^-100, and 1 for rows of zeros and for rows whose largest
//! magnitude is infinite.
//!
//! A `bf16x2` row holds each value as the sum of two bf16: the value rounded, and what that left, rounded. All upper
//! parts come first, then all lower ones, each half with zeros up to a multiple of [`TILE_COLS`].

use mambo_kernel::rounding::{bf16_bits, bf16_value, f16_bits, f16_value};
use mambo_kernel::{Elem, PrivateElem};

/// Columns that products take at a time; rows are padded to a multiple of them.
pub(crate) const TILE_COLS: usize = 64;

/// Exponent of f32's one, in place.
const ONE_EXPONENT: i32 = 127;
/// Exponent that the largest magnitude of a row gets.
const TOP_EXPONENT: i32 = 14;
/// The smallest scale is 2^-100: what can be inverted, and smaller rows lose digits that no product could show.
const LEAST_EXPONENT: i32 = -100;

static F16_ELEM: PrivateElem = PrivateElem {
    name: "f16",
    row_bytes: |cols| 2 * cols.next_multiple_of(TILE_COLS) + size_of::<f32>(),
    encode: encode_f16,
    decode: decode_f16,
    // Half a unit in the last of eleven digits, of a largest value that may be a power of two.
    error: 1.0 / (1 << 11) as f32,
};

static PAIR_ELEM: PrivateElem = PrivateElem {
    name: "bf16+bf16",
    row_bytes: |cols| 2 * 2 * cols.next_multiple_of(TILE_COLS),
    encode: encode_pairs,
    decode: decode_pairs,
    // Each part keeps eight digits and rounds to nearest.
    error: 1.0 / (1 << 16) as f32,
};

/// f16 values with a scale for the row.
pub(crate) const F16: Elem = Elem::Private(&F16_ELEM);
/// Sums of two bf16.
pub(crate) const BF16X2: Elem = Elem::Private(&PAIR_ELEM);

/// The scale of a row with this largest magnitude.
fn f16_scale(largest: f32) -> f32 {
    if largest == 0.0 || !largest.is_finite() {
        return 1.0;
    }
    let exponent = (largest.to_bits() >> 23) as i32 - ONE_EXPONENT;
    let scale = (exponent - TOP_EXPONENT).max(LEAST_EXPONENT);
    f32::from_bits(((scale + ONE_EXPONENT) as u32) << 23)
}

fn encode_f16(x: &[f32]) -> Vec<u8> {
    let scale = f16_scale(x.iter().fold(0f32, |largest, value| largest.max(value.abs())));
    let mut row: Vec<u8> = x.iter().flat_map(|value| f16_bits(value / scale).to_le_bytes()).collect();
    row.resize(2 * x.len().next_multiple_of(TILE_COLS), 0);
    row.extend(scale.to_le_bytes());
    row
}

fn decode_f16(row: &[u8], cols: usize) -> Vec<f32> {
    let (values, rest) = row.split_at(2 * cols.next_multiple_of(TILE_COLS));
    let scale = f32::from_le_bytes(*rest.first_chunk().expect("a row ends with its scale"));
    values.as_chunks().0.iter().take(cols).map(|bits| f16_value(u16::from_le_bytes(*bits)) * scale).collect()
}

fn encode_pairs(x: &[f32]) -> Vec<u8> {
    let half = |values: &mut dyn Iterator<Item = f32>| {
        let mut bytes: Vec<u8> = values.flat_map(|value| bf16_bits(value).to_le_bytes()).collect();
        bytes.resize(2 * x.len().next_multiple_of(TILE_COLS), 0);
        bytes
    };
    let mut row = half(&mut x.iter().copied());
    row.extend(half(&mut x.iter().map(|&value| value - bf16_value(bf16_bits(value)))));
    row
}

fn decode_pairs(row: &[u8], cols: usize) -> Vec<f32> {
    let parts = row.as_chunks::<2>().0;
    let value = |i: usize| bf16_value(u16::from_le_bytes(parts[i]));
    let half = cols.next_multiple_of(TILE_COLS);
    (0..cols).map(|i| value(i) + value(half + i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_decode_to_what_their_type_states() {
        for size in [1.0, 1e-30, 1e30, 1e-6] {
            let x: Vec<f32> = (0..97).map(|i| (i as f32 - 48.5) * size).collect();
            let largest = 48.5 * size;
            for elem in [&F16_ELEM, &PAIR_ELEM] {
                let row = (elem.encode)(&x);
                assert_eq!(row.len(), (elem.row_bytes)(x.len()), "{}", elem.name);
                for (got, want) in (elem.decode)(&row, x.len()).iter().zip(&x) {
                    assert!((got - want).abs() <= elem.error * largest, "{}: {got} for {want}", elem.name);
                }
            }
        }
    }

    #[test]
    fn scales_are_powers_of_two_that_leave_room() {
        for largest in [1.0f32, 1.5, 3e-20, 6e4, f32::MAX, f32::MIN_POSITIVE] {
            let scale = f16_scale(largest);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{largest}");
            assert!(largest / scale < 65504.0, "{largest}");
        }
        assert_eq!([0.0, f32::INFINITY, f32::NAN].map(f16_scale), [1.0; 3]);
    }
}
