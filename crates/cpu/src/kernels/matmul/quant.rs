//! The dot product that all block formats share: sixteen weight rows times 32 columns of 8-bit codes.
//!
//! A tile's codes come as eight vectors; step j holds columns 4j..4j+4 of every row. Products and sums of
//! a tile are whole numbers, so every instruction set finds the same ones; then
//! `acc = fma(scale_w·scale_x, sum, acc)`, tile after tile.
#![allow(unsafe_code)]

use crate::shared::View;
use crate::simd::Simd;

/// Columns of a tile: one block of the activations.
pub(crate) const TILE: usize = 32;

/// Words of a tile's codes.
const WORDS: usize = TILE / 4;

/// An 8-bit activation row.
#[derive(Clone, Copy)]
pub(crate) struct Q8Row<'a> {
    /// Codes by tile, four to a word.
    codes: &'a [[i32; WORDS]],
    /// Bits of f32 scales by tile.
    scales: &'a [i32],
    /// What the format prepared, by tile.
    prepared: &'a [i32],
}

impl<'a> Q8Row<'a> {
    /// A row of the input with what was prepared for it: `per_tile` words.
    #[inline(always)]
    pub fn new(x: &View<'a>, row: usize, prepared: &'a [i32], per_tile: usize) -> Q8Row<'a> {
        let (codes, scales, _) = split(x.q8_row(row), x.cols());
        assert!(scales.len() == codes.len() && prepared.len() == codes.len() * per_tile);
        Q8Row { codes, scales, prepared }
    }

    /// Tiles of the row.
    #[inline(always)]
    pub fn tiles(&self) -> usize {
        self.codes.len()
    }

    /// Codes of tile `t`.
    ///
    /// # Safety
    /// `t` is below the number of tiles.
    #[inline(always)]
    pub unsafe fn codes(&self, t: usize) -> &'a [i32; WORDS] {
        // SAFETY: the caller vouches for it.
        unsafe { self.codes.get_unchecked(t) }
    }

    /// Scale of tile `t`.
    ///
    /// # Safety
    /// `t` is below the number of tiles.
    #[inline(always)]
    pub unsafe fn scale(&self, t: usize) -> f32 {
        // SAFETY: the caller vouches for it, and there are as many scales as tiles.
        f32::from_bits(unsafe { *self.scales.get_unchecked(t) } as u32)
    }

    /// Prepared word `i`.
    ///
    /// # Safety
    /// `i` is below the number of tiles times the format's words per tile.
    #[inline(always)]
    pub unsafe fn prepared(&self, i: usize) -> i32 {
        // SAFETY: the caller vouches for it, and the length was checked.
        unsafe { *self.prepared.get_unchecked(i) }
    }
}

/// The parts of a row in memory: codes, scales, sums of codes.
#[inline(always)]
pub(crate) fn split(row: &[i32], cols: usize) -> (&[[i32; WORDS]], &[i32], &[i32]) {
    let (codes, rest) = row.split_at(cols / 4);
    let (scales, rest) = rest.split_at(cols / TILE);
    (codes.as_chunks().0, scales, &rest[..cols / TILE])
}

/// Prepares `-zero · Σ codes` of every block: where a tile's sum starts so that the weights' zero point
/// is taken out.
#[inline(always)]
pub(crate) fn prepare_sums(x: &View, row: usize, zero: i32, prepared: &mut [i32]) {
    let (_, _, sums) = split(x.q8_row(row), x.cols());
    for (out, sum) in prepared.iter_mut().zip(sums) {
        *out = -zero * sum;
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
    x: &[i32; WORDS],
) -> S::I {
    for j in FROM..TO {
        acc = S::dot(acc, codes[j], x[j]);
    }
    acc
}

/// Copies 32 codes of one row into a lane of a nibble plane.
#[inline(always)]
pub(crate) fn pack_nibbles(plane: &mut [u8], lane: usize, codes: &[u8; TILE]) {
    for v in 0..4 {
        let four: [u8; 4] = std::array::from_fn(|b| codes[4 * v + b] & 15 | codes[16 + 4 * v + b] << 4);
        plane[64 * v + 4 * lane..][..4].copy_from_slice(&four);
    }
}

/// Copies the 16 bytes of nibbles of one row, which have the plane's order, into its lane.
#[inline(always)]
pub(crate) fn copy_nibbles(plane: &mut [u8], lane: usize, stored: &[u8]) {
    for v in 0..4 {
        plane[64 * v + 4 * lane..][..4].copy_from_slice(&stored[4 * v..4 * v + 4]);
    }
}

/// Walks the tiles or blocks of a panel's rows: all lanes of the first, then of the second, ...
#[inline(always)]
pub(crate) fn each_block<const BYTES: usize>(
    rows: &[&[u8]],
    first_lane: usize,
    mut pack: impl FnMut(usize, usize, &[u8; BYTES]),
) {
    let blocks = rows.first().map_or(0, |row| row.len() / BYTES);
    for block in 0..blocks {
        for (i, row) in rows.iter().enumerate() {
            pack(block, first_lane + i, &row.as_chunks::<BYTES>().0[block]);
        }
    }
}

/// How far ahead of the products weights are fetched when few rows meet them: what a core reads in the
/// time memory takes to answer.
const AHEAD: usize = 4096;

/// Fetches ahead of a tile's plane. With many rows the panel is in cache already.
#[inline(always)]
pub(crate) fn fetch_ahead<S: Simd, const R: usize>(plane: &[u8]) {
    if R <= 4 {
        for line in (0..plane.len()).step_by(64) {
            S::prefetch(plane, AHEAD + line);
        }
    }
}
