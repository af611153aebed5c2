//! The dot product that all block formats share: sixteen weight rows times 32 columns of 8-bit codes.
//!
//! A tile's codes come as eight vectors; step j holds columns 4j..4j+4 of every row. Products and sums of
//! a tile are whole numbers, so every instruction set finds the same ones; then
//! `acc = fma(scale_w·scale_x, sum, acc)`, tile after tile.

use crate::shared::View;
use crate::simd::Simd;

/// Columns of a tile: one block of the activations.
pub(crate) const TILE: usize = 32;

/// An 8-bit activation row.
#[derive(Clone, Copy)]
pub(crate) struct Q8Row<'a> {
    /// Codes by block.
    pub codes: &'a [[u8; TILE]],
    /// f32 scales by block.
    pub scales: &'a [[u8; 4]],
    /// What the format prepared, by block.
    pub prepared: &'a [i32],
}

/// The parts of a row in memory: codes, scales, sums of codes.
#[inline(always)]
pub(crate) fn split(row: &[u8], cols: usize) -> (&[[u8; TILE]], &[[u8; 4]], &[[u8; 4]]) {
    let blocks = cols / TILE;
    let (codes, rest) = row.split_at(cols);
    let (scales, rest) = rest.split_at(blocks * 4);
    (codes.as_chunks().0, scales.as_chunks().0, rest[..blocks * 4].as_chunks().0)
}

/// A row of the input with what was prepared for it.
#[inline(always)]
pub(crate) fn q8_row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> Q8Row<'a> {
    let (codes, scales, _) = split(x.q8_row(row), x.cols());
    Q8Row { codes, scales, prepared }
}

/// Prepares `-zero · Σ codes` of every block: where a tile's sum starts so that the weights' zero point
/// is taken out.
#[inline(always)]
pub(crate) fn prepare_sums(x: &View, row: usize, zero: i32, prepared: &mut [i32]) {
    let (_, _, sums) = split(x.q8_row(row), x.cols());
    for (out, sum) in prepared.iter_mut().zip(sums) {
        *out = -zero * i32::from_le_bytes(*sum);
    }
}

/// The eight code vectors of a plane of nibbles: low ones are columns 0..16, high ones 16..32.
#[inline(always)]
pub(crate) fn nibbles<S: Simd>(plane: &[u8; 256]) -> [S::B; 8] {
    let mask = S::bsplat(15);
    let v: [S::B; 4] = [load::<S>(plane, 0), load::<S>(plane, 1), load::<S>(plane, 2), load::<S>(plane, 3)];
    [
        S::band(v[0], mask),
        S::band(v[1], mask),
        S::band(v[2], mask),
        S::band(v[3], mask),
        S::band(S::bshr::<4>(v[0]), mask),
        S::band(S::bshr::<4>(v[1]), mask),
        S::band(S::bshr::<4>(v[2]), mask),
        S::band(S::bshr::<4>(v[3]), mask),
    ]
}

/// Vector `i` of a plane.
#[inline(always)]
pub(crate) fn load<S: Simd>(plane: &[u8], i: usize) -> S::B {
    S::load_bytes(plane[64 * i..][..64].first_chunk().expect("a whole vector"))
}

/// Steps `FROM..TO` of a tile's dot product.
#[inline(always)]
pub(crate) fn dot<S: Simd, const FROM: usize, const TO: usize>(
    mut acc: S::I,
    codes: &[S::B; 8],
    x: &[u8; TILE],
) -> S::I {
    let (x, _) = x.as_chunks::<4>();
    for j in FROM..TO {
        acc = S::dot(acc, codes[j], &x[j]);
    }
    acc
}

/// Copies 32 codes of one row into a lane of a nibble plane.
pub(crate) fn pack_nibbles(plane: &mut [u8], lane: usize, codes: impl Fn(usize) -> u8) {
    for v in 0..4 {
        for b in 0..4 {
            plane[64 * v + 4 * lane + b] = codes(4 * v + b) & 15 | codes(16 + 4 * v + b) << 4;
        }
    }
}

/// f32 from little-endian bytes.
#[inline(always)]
pub(crate) fn float(bytes: &[u8; 4]) -> f32 {
    f32::from_le_bytes(*bytes)
}
