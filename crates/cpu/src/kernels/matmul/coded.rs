//! Weights of whole codes with scales, against 8-bit activations: what all block formats share.
//!
//! A tile is sixteen weight rows times 32 columns. Its codes come as eight vectors; step j holds columns
//! 4j..4j+4 of every row. Sums of a tile are whole numbers, so every instruction set finds the same ones.
//! Then `acc = fma(scale_x, inner, acc)`, tile after tile, where `inner` is the sum times the weights' scale
//! ([`inner`]).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use mambo_tensor::DType;

use super::format::{Format, Many, Stretch, each_row};
use super::many_codes::UnpackedTile;
use crate::shared::{Q8Block, View};
use crate::simd::Simd;

/// Columns of a tile: one block of the activations.
pub(crate) const TILE: usize = 32;

/// One stored type.
pub(crate) trait Coded: Send + Sync + 'static {
    /// What makes a tile's product.
    const KIND: Kind;
    /// Code of a zero weight: a power of two from 8 to 128. Lines have none.
    const ZERO: i32;
    /// Whether dot steps take columns s, s + 8, s + 16, s + 24 and not four in a row.
    const TURNED: bool = false;

    /// A panel's planes.
    type Panel<'a>: Copy;

    /// Bytes of a panel, before they are rounded up.
    fn bytes(cols: usize) -> usize;
    /// Packs stored rows into consecutive lanes of a zeroed panel.
    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]);
    /// Finds the planes.
    fn planes(panel: &[u8], tiles: usize) -> Self::Panel<'_>;
    /// The bytes of tile `t` that weigh most, to be fetched ahead.
    fn stream<'p>(panel: &'p Self::Panel<'_>, t: usize) -> &'p [u8];
    /// Unpacks tile `t`.
    fn tile<S: Simd>(panel: &Self::Panel<'_>, t: usize) -> Tile<S>;
}

/// What makes a tile's product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One scale.
    Whole,
    /// A scale for each half.
    Halves,
    /// A scale, and a line's value at code zero.
    Line,
}

/// A tile in registers.
#[derive(Clone, Copy)]
pub(crate) struct Tile<S: Simd> {
    pub codes: [S::B; 8],
    pub scale: S::F,
    /// The second half's scale, or the line's value at code zero over -128: it meets the offset of the
    /// activations.
    pub other: S::F,
}

impl<S: Simd> Tile<S> {
    /// A tile of one scale.
    #[inline(always)]
    pub fn whole(codes: [S::B; 8], scale: S::F) -> Self {
        Tile { codes, scale, other: scale }
    }

    /// A tile of lines.
    #[inline(always)]
    pub fn line(codes: [S::B; 8], scale: S::F, low: S::F) -> Self {
        Tile { codes, scale, other: S::mul(low, S::splat(-1.0 / 128.0)) }
    }
}

/// The weights' share of a tile's product, from the sums of its halves or the whole sum.
#[inline(always)]
pub(crate) fn inner<S: Simd>(kind: Kind, scale: S::F, other: S::F, sums: [S::I; 2], x: &Q8Block) -> S::F {
    let first = S::mul(scale, S::to_float(sums[0]));
    match kind {
        Kind::Whole => first,
        Kind::Halves => S::fma(other, S::to_float(sums[1]), first),
        Kind::Line => S::fma(other, S::to_float(S::isplat(x.offset)), first),
    }
}

/// Where a sum starts so that the codes' zero point is taken out.
#[inline(always)]
pub(crate) fn start<S: Simd>(zero: i32, offset: i32) -> S::I {
    let offset = S::isplat(offset);
    match zero {
        8 => S::isar::<4>(offset),
        16 => S::isar::<3>(offset),
        32 => S::isar::<2>(offset),
        64 => S::isar::<1>(offset),
        128 if S::WIDE_ZERO == 128 => offset,
        _ => S::isplat(0),
    }
}

/// Sums of a tile with one block of activations: of its halves, or of all twice.
#[inline(always)]
fn sums<S: Simd, C: Coded>(codes: &[S::B; 8], x: &Q8Block) -> [S::I; 2] {
    if C::KIND == Kind::Halves {
        let first = start::<S>(C::ZERO, x.half_offset);
        let second = S::isub(start::<S>(C::ZERO, x.offset), first);
        return [steps::<S, C, 0, 4>(first, codes, x), steps::<S, C, 4, 8>(second, codes, x)];
    }
    let all = steps::<S, C, 0, 8>(start::<S>(C::ZERO, x.offset), codes, x);
    [all, all]
}

/// Steps `FROM..TO` of a tile's dot product.
#[inline(always)]
fn steps<S: Simd, C: Coded, const FROM: usize, const TO: usize>(
    mut sum: S::I,
    codes: &[S::B; 8],
    x: &Q8Block,
) -> S::I {
    for j in FROM..TO {
        sum = if C::ZERO == 128 {
            S::dot_wide(sum, codes[j], x.codes[j])
        } else {
            S::dot(sum, codes[j], x.codes[j])
        };
    }
    sum
}

/// The format of a type of codes.
pub(crate) struct CodedFormat<C>(PhantomData<C>);

impl<C: Coded> Format for CodedFormat<C> {
    type Row<'a> = &'a [Q8Block];

    const PREPARED: usize = if C::TURNED { size_of::<Q8Block>() / 4 } else { 0 };
    const MANY: Many = Many::Codes(C::KIND);
    const WIDE: bool = C::ZERO == 128;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        C::bytes(cols).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        C::pack(panel, cols, first_lane, rows);
    }

    #[inline(always)]
    fn unpack<S: Simd>(stretch: &Stretch, out: &mut [u8]) {
        let planes = C::planes(stretch.panel, stretch.cols / TILE);
        let zero = if C::ZERO == 128 { 128 } else { S::CODE_ZERO };
        let shift = S::bsplat(if C::KIND == Kind::Line { 0 } else { (zero - C::ZERO) as u8 });
        for (t, out) in stretch.range.clone().zip(UnpackedTile::of(out)) {
            let tile = C::tile::<S>(&planes, t);
            for j in 0..8 {
                S::store_bytes(S::badd(tile.codes[j], shift), &mut out.codes[j]);
            }
            S::store_le(tile.scale, &mut out.scale);
            S::store_le(tile.other, &mut out.other);
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        if C::TURNED {
            let blocks: &mut [Q8Block] = bytemuck::cast_slice_mut(prepared);
            for (out, block) in blocks.iter_mut().zip(x.q8_row(row)) {
                let bytes = block.codes.map(i32::to_ne_bytes);
                *out = *block;
                for s in 0..8 {
                    out.codes[s] = i32::from_ne_bytes(std::array::from_fn(|g| bytes[2 * g + s / 4][s % 4]));
                }
            }
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> &'a [Q8Block] {
        if C::TURNED { bytemuck::cast_slice(prepared) } else { x.q8_row(row) }
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[&[Q8Block]; R],
    ) -> [[S::F; R]; N] {
        let tiles = cols / TILE;
        assert!(x.iter().all(|x| x.len() == tiles));
        let bytes = panels;
        let panels = panels.map(|panel| C::planes(panel, tiles));
        let mut acc = [[S::zero(); R]; N];
        for t in 0..tiles {
            each_row!(N, p, {
                if R > PASSING_ROWS {
                    fetch_next::<S>(bytes[p], t, tiles);
                } else {
                    fetch_ahead::<S>(C::stream(&panels[p], t));
                }
                let tile = C::tile::<S>(&panels[p], t);
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` blocks.
                    let x = unsafe { x[r].get_unchecked(t) };
                    let sums = sums::<S, C>(&tile.codes, x);
                    let inner = inner::<S>(C::KIND, tile.scale, tile.other, sums, x);
                    acc[p][r] = S::fma(S::splat(x.scale), inner, acc[p][r]);
                });
            });
        }
        acc
    }
}

/// Up to so many rows memory is the limit, and weights only pass by.
const PASSING_ROWS: usize = 4;
/// How far ahead of passing weights memory is asked: what a core reads in the time it takes to answer.
const AHEAD: usize = 4096;

/// Fetches the part of the next panel that corresponds to tile `t`: all of it, while this one is multiplied.
#[inline(always)]
fn fetch_next<S: Simd>(panel: &[u8], t: usize, tiles: usize) {
    let (first, end) = (panel.len() * t / tiles, panel.len() * (t + 1) / tiles);
    for line in (first / 64..end / 64).map(|line| line * 64) {
        S::prefetch(panel, panel.len() + line);
    }
}

/// Fetches ahead of weights that pass by.
#[inline(always)]
pub(crate) fn fetch_ahead<S: Simd>(stream: &[u8]) {
    for line in (0..stream.len()).step_by(64) {
        S::prefetch(stream, AHEAD + line);
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
