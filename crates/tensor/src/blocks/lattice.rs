//! What the point sets in `grids.rs` mean: coordinates to values, packed signs to sign bits.
//!
//! Shared by the `iq1`, `iq2` and `iq3` formats; it knows no block layout.

/// Magnitudes of an `iq2` coordinate; no point uses the last.
const IQ2_VALUES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
/// Magnitudes of an `iq3_xxs` coordinate.
const IQ3_XXS_VALUES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

/// All eight sign bits from the seven stored ones: the number of minus signs is always even.
pub fn even_signs(stored: u8) -> u8 {
    let low = stored & 127;
    low | ((low.count_ones() as u8 & 1) << 7)
}

/// Writes `scale · value · sign` for the eight values of a group; bit i of `signs` negates value i.
fn put(scale: f32, signs: u8, out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (i, o) in out.iter_mut().enumerate() {
        let v = scale * value(i);
        *o = if signs >> i & 1 == 0 { v } else { -v };
    }
}

/// Eight values of an `iq2` point.
pub fn put_iq2(point: u16, scale: f32, signs: u8, out: &mut [f32]) {
    put(scale, signs, out, |i| IQ2_VALUES[usize::from(point >> (2 * i) & 3)]);
}

/// Eight values of two `iq3_xxs` points.
pub fn put_iq3_xxs(points: [u16; 2], scale: f32, signs: u8, out: &mut [f32]) {
    put(scale, signs, out, |i| IQ3_XXS_VALUES[usize::from(points[i / 4] >> (3 * (i % 4)) & 7)]);
}

/// Eight values of two `iq3_s` points; coordinate c stands for 2c + 1.
pub fn put_iq3_s(points: [u16; 2], scale: f32, signs: u8, out: &mut [f32]) {
    put(scale, signs, out, |i| f32::from(2 * (points[i / 4] >> (3 * (i % 4)) & 7) + 1));
}

/// Eight values of an `iq1` point, shifted by an eighth; coordinate c stands for c − 1.
pub fn put_iq1(point: u16, scale: f32, down: bool, out: &mut [f32]) {
    let shift = if down { -0.125 } else { 0.125 };
    for (i, o) in out.iter_mut().enumerate() {
        *o = scale * (f32::from(point >> (2 * i) & 3) - 1.0 + shift);
    }
}

#[cfg(test)]
mod tests {
    use super::super::grids;
    use super::*;

    #[test]
    fn signs_are_even() {
        assert_eq!([0, 1, 2, 3, 127].map(even_signs), [0x00, 0x81, 0x82, 0x03, 0xff]);
    }

    #[test]
    fn points_are_sorted_and_use_three_magnitudes() {
        let two_bit: [&[u16]; 4] = [&grids::IQ1, &grids::IQ2_XXS, &grids::IQ2_XS, &grids::IQ2_S];
        for grid in two_bit.into_iter().chain([&grids::IQ3_XXS[..], &grids::IQ3_S]) {
            assert!(grid.is_sorted_by(|a, b| a < b));
        }
        for point in two_bit.into_iter().flatten() {
            assert!((0..8).all(|i| point >> (2 * i) & 3 < 3));
        }
    }
}
