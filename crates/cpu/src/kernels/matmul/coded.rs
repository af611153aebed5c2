//! Weights stored as integer codes with scales, times 8-bit activations: what all block formats share.
//!
//! A tile is sixteen weight rows by 32 columns. Its codes are eight vectors; vector j holds columns 4j..4j+4 of every
//! row. Sums within a tile are integers, so every instruction set computes the same ones. Then
//! `acc = fma(scale_x, inner, acc)`, tile by tile, where `inner` is the sum times the weights' scale
//! ([`Codes::inner`]).
//!
//! Where it is free, an integer sum starts at the bit pattern of [`ANCHOR`], so that its bits are those of the float
//! `anchor + sum` and need no conversion. `scale · anchor` is exact, because a scale has at most 17 significant bits
//! and is at most 2^104; the fma that subtracts it therefore rounds `scale · sum` exactly as a conversion and a product
//! would. (A NaN scale gives a NaN either way, though not the same one.)
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::activation::{ANCHOR, Q8Block};
use mambo_tensor::DType;
use mambo_tensor::blocks::Block;

use super::format::{Format, Many, PANEL_ROWS, PanelSlice, fetch_ahead};
use super::many_codes::UnpackedTile;
use crate::isa::Fetch;
use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;

/// Columns of a tile: one block of the activations.
pub(crate) const TILE: usize = 32;

/// One stored type. A panel is read front to back as one stream: for each stored block first what its tiles share,
/// then the tiles, each with its own scales.
pub(crate) trait Coded: Send + Sync + 'static {
    /// A block of one row, as stored.
    type Stored: Block;

    /// How a tile's product is formed.
    const KIND: Kind;
    /// Code of a zero weight: a power of two from 8 to 128; 0 for types with a minimum.
    const ZERO: i32;
    /// Whether unpacking can move the zero point for free, see [`Coded::zero`].
    const MOVES_ZERO: bool = false;
    /// Whether dot step s takes columns s, s + 8, s + 16 and s + 24 instead of four consecutive ones.
    const TRANSPOSED: bool = false;
    /// Tiles of a stored block.
    const TILES: usize = Self::Stored::ELEMS / TILE;
    /// Bytes of a panel's block that all its tiles share.
    const OWN_BYTES: usize = 0;
    /// Bytes of a panel's tile.
    const TILE_BYTES: usize;
    /// Bytes of a panel's block.
    const BLOCK_BYTES: usize = Self::OWN_BYTES + Self::TILES * Self::TILE_BYTES;

    /// Packs a stored block into a lane of a zeroed panel block: the shared part and the tiles.
    fn pack(stored: &Self::Stored, lane: usize, own: &mut [u8], tiles: &mut [u8]);
    /// Code of a zero weight in an unpacked tile. Where dot products take all eight bits, 128 is free: its correction
    /// is stored with the activations.
    #[inline(always)]
    fn zero<S: Simd>() -> i32 {
        if Self::MOVES_ZERO && S::CODE_ZERO == 128 { 128 } else { Self::ZERO }
    }
    /// Unpacks what the tiles of a block share, once for all of them.
    #[inline(always)]
    fn shared<S: Simd>(_own: &[u8]) -> [S::F; 2] {
        [S::zero(); 2]
    }
    /// Unpacks a tile.
    fn tile<S: Simd>(shared: [S::F; 2], tile: &[u8]) -> Tile<S>;
}

/// The shared part of block `b`.
///
/// # Safety
/// The panel has this block.
#[inline(always)]
unsafe fn own_of<C: Coded>(panel: &[u8], b: usize) -> &[u8] {
    let own = b * C::BLOCK_BYTES;
    // SAFETY: guaranteed by the caller.
    unsafe { panel.get_unchecked(own..own + C::OWN_BYTES) }
}

/// Tile `j` of block `b`.
///
/// # Safety
/// The panel has this tile.
#[inline(always)]
unsafe fn tile_of<C: Coded>(panel: &[u8], b: usize, j: usize) -> &[u8] {
    let tile = b * C::BLOCK_BYTES + C::OWN_BYTES + j * C::TILE_BYTES;
    // SAFETY: guaranteed by the caller.
    unsafe { panel.get_unchecked(tile..tile + C::TILE_BYTES) }
}

/// Upper bound on the tiles of a panel.
fn tiles_of<C: Coded>(panel: &[u8]) -> usize {
    panel.len() / C::BLOCK_BYTES * C::TILES
}

/// How a tile's product is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One scale per tile.
    Whole,
    /// One scale per half tile.
    Halves,
    /// A scale, and a minimum: the value of code zero.
    Line,
}

/// A tile in registers.
#[derive(Clone, Copy)]
pub(crate) struct Tile<S: Simd> {
    pub codes: [S::B; 8],
    pub scale: S::F,
    /// Minus the anchor times the scale; the second half's scale; or the minimum divided by -128, which is multiplied
    /// with the offset of the activations.
    pub other: S::F,
}

impl<S: Simd> Tile<S> {
    /// A tile of one scale.
    #[inline(always)]
    pub fn whole(codes: [S::B; 8], scale: S::F) -> Self {
        Tile { codes, scale, other: minus_anchor::<S>(scale) }
    }

    /// A tile with a scale, and a minimum that is divided by -128.
    #[inline(always)]
    pub fn line(codes: [S::B; 8], scale: S::F, other: S::F) -> Self {
        Tile { codes, scale, other }
    }
}

/// Minus the anchor times a scale: added to `scale · (anchor + sum)` it leaves `scale · sum`.
#[inline(always)]
fn minus_anchor<S: Simd>(scale: S::F) -> S::F {
    S::mul(scale, S::splat(-ANCHOR))
}

/// What the summation has to know about the codes.
#[derive(Clone, Copy)]
pub(crate) struct Codes {
    pub kind: Kind,
    /// The code of a zero weight.
    pub zero: i32,
}

impl Codes {
    /// Whether sums start at the anchor: where the start value is one word in memory, or constant.
    #[inline(always)]
    fn is_anchored<S: Simd>(self) -> bool {
        match self.kind {
            Kind::Whole => self.zero == 128 && S::WIDE_ZERO == 128,
            Kind::Halves => false,
            Kind::Line => true,
        }
    }

    /// The weights' factor of a tile's product, from the sums of its halves or the whole sum.
    #[inline(always)]
    pub fn inner<S: Simd>(self, [scale, other]: [S::F; 2], sums: [S::I; 2], x: &Q8Block) -> S::F {
        let first = match self.kind {
            _ if !self.is_anchored::<S>() => S::mul(scale, S::to_float(sums[0])),
            Kind::Whole => S::fma(scale, S::from_bits(sums[0]), other),
            _ => S::fma(scale, S::from_bits(sums[0]), minus_anchor::<S>(scale)),
        };
        match self.kind {
            Kind::Whole => first,
            Kind::Halves => S::fma(other, S::to_float(sums[1]), first),
            Kind::Line => S::fma(other, S::splat(x.offset), first),
        }
    }

    /// The sums of a tile with each row: of its halves, or the whole sum alone.
    #[inline(always)]
    fn sums<S: Simd, const R: usize>(self, tile: &Tile<S>, x: &[&Q8Block; R]) -> [[S::I; 2]; R] {
        let mut sums = [[S::isplat(0); 2]; R];
        each_row!(R, r, {
            sums[r] = self.starts::<S>(x[r]);
        });
        // With one row a whole sum is two, so that the next step need not wait for the last one.
        let in_two = R == 1 && self.kind != Kind::Halves;
        // Rows are interleaved so that consecutive dot steps do not depend on each other.
        for j in 0..8 {
            let part = usize::from(if in_two { j % 2 == 1 } else { self.kind == Kind::Halves && j >= 4 });
            each_row!(R, r, {
                sums[r][part] = if self.zero == 128 {
                    S::dot_wide(sums[r][part], tile.codes[j], x[r].codes[j])
                } else {
                    S::dot(sums[r][part], tile.codes[j], x[r].codes[j])
                };
            });
        }
        if in_two {
            sums[0][0] = S::iadd(sums[0][0], sums[0][1]);
        }
        sums
    }

    /// Start values of the sums of a tile's halves, or of the whole sum alone.
    #[inline(always)]
    pub fn starts<S: Simd>(self, x: &Q8Block) -> [S::I; 2] {
        let none = S::isplat(0);
        match self.kind {
            Kind::Line => [S::isplat(ANCHOR.to_bits() as i32), none],
            Kind::Whole if self.is_anchored::<S>() => [S::isplat(x.start), none],
            Kind::Whole => [start::<S>(self.zero, offset(x)), none],
            Kind::Halves => {
                let first = start::<S>(self.zero, x.half_offset);
                [first, S::isub(start::<S>(self.zero, offset(x)), first)]
            }
        }
    }
}

/// -128 times the sum of a block's codes.
#[inline(always)]
fn offset(x: &Q8Block) -> i32 {
    x.start.wrapping_sub(ANCHOR.to_bits() as i32)
}

/// Start value of a sum that subtracts the codes' zero point.
#[inline(always)]
fn start<S: Simd>(zero: i32, offset: i32) -> S::I {
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

/// The format of a type stored as codes.
pub(crate) struct CodedFormat<C>(PhantomData<C>);

impl<C: Coded> Format for CodedFormat<C> {
    type Home = C;
    type Row<'a> = &'a [Q8Block];

    const PREPARED: usize = if C::TRANSPOSED { size_of::<Q8Block>() / 4 } else { 0 };
    const MANY: Many = Many::Codes(C::KIND);
    const WIDE: bool = C::ZERO == 128;
    const SIDE_BY_SIDE: bool = false;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE / C::TILES * C::BLOCK_BYTES).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let blocks = panel.chunks_exact_mut(C::BLOCK_BYTES).take(cols / TILE / C::TILES);
        let mut stored: [&[C::Stored]; PANEL_ROWS] = [&[]; PANEL_ROWS];
        stored.iter_mut().zip(rows).for_each(|(stored, row)| *stored = C::Stored::row(row));
        for (i, block) in blocks.enumerate() {
            let (own, tiles) = block.split_at_mut(C::OWN_BYTES);
            for (r, row) in stored[..rows.len()].iter().enumerate() {
                C::pack(&row[i], first_lane + r, own, tiles);
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(slice: &PanelSlice, out: &mut [u8]) {
        assert!(slice.range.end <= tiles_of::<C>(slice.panel));
        let zero = if C::ZERO == 128 { 128 } else { S::CODE_ZERO };
        let shift = S::bsplat(if C::KIND == Kind::Line { 0 } else { (zero - C::zero::<S>()) as u8 });
        for (t, out) in slice.range.clone().zip(UnpackedTile::of(out)) {
            let (b, j) = (t / C::TILES, t % C::TILES);
            // SAFETY: the panel has these tiles, as just asserted.
            let (own, tile) = unsafe { (own_of::<C>(slice.panel, b), tile_of::<C>(slice.panel, b, j)) };
            let tile = C::tile::<S>(C::shared::<S>(own), tile);
            for j in 0..8 {
                S::store_bytes(S::badd(tile.codes[j], shift), &mut out.codes[j]);
            }
            S::store_le(tile.scale, &mut out.scale);
            S::store_le(tile.other, &mut out.other);
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        if C::TRANSPOSED {
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
        if C::TRANSPOSED { bytemuck::cast_slice(prepared) } else { x.q8_row(row) }
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[&[Q8Block]; R],
        fetch: Fetch,
    ) -> [[S::F; R]; N] {
        let tiles = cols / TILE;
        assert!(x.iter().all(|x| x.len() == tiles) && panels.iter().all(|p| tiles <= tiles_of::<C>(p)));
        let codes = Codes { kind: C::KIND, zero: C::zero::<S>() };
        let mut acc = [[S::zero(); R]; N];
        for b in 0..tiles / C::TILES {
            let mut shared = [[S::zero(); 2]; N];
            each_row!(N, p, {
                // SAFETY: every panel has `tiles` tiles.
                shared[p] = C::shared::<S>(unsafe { own_of::<C>(panels[p], b) });
            });
            for j in 0..C::TILES {
                // SAFETY: every row has `tiles` blocks.
                let x: [&Q8Block; R] =
                    std::array::from_fn(|r| unsafe { x[r].get_unchecked(b * C::TILES + j) });
                each_row!(N, p, {
                    // SAFETY: every panel has `tiles` tiles.
                    let tile = unsafe { tile_of::<C>(panels[p], b, j) };
                    fetch_ahead::<S>(tile, fetch);
                    let tile = C::tile::<S>(shared[p], tile);
                    let sums = codes.sums::<S, R>(&tile, &x);
                    each_row!(R, r, {
                        let inner = codes.inner::<S>([tile.scale, tile.other], sums[r], x[r]);
                        acc[p][r] = S::fma(S::splat(x[r].scale), inner, acc[p][r]);
                    });
                });
            }
        }
        acc
    }
}

/// The eight code vectors of 256 bytes of nibbles: low nibbles are columns 0..16, high ones 16..32.
#[inline(always)]
pub(crate) fn nibbles<S: Simd>(bytes: &[u8]) -> [S::B; 8] {
    let mask = S::bsplat(15);
    let v: [S::B; 4] = [load::<S>(bytes, 0), load::<S>(bytes, 1), load::<S>(bytes, 2), load::<S>(bytes, 3)];
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

/// The same codes times sixteen: every nibble ends up in the upper half of its byte.
#[inline(always)]
pub(crate) fn upper_nibbles<S: Simd>(bytes: &[u8]) -> [S::B; 8] {
    let mask = S::bsplat(0xf0);
    let v: [S::B; 4] = [load::<S>(bytes, 0), load::<S>(bytes, 1), load::<S>(bytes, 2), load::<S>(bytes, 3)];
    [
        S::band(S::bshl::<4>(v[0]), mask),
        S::band(S::bshl::<4>(v[1]), mask),
        S::band(S::bshl::<4>(v[2]), mask),
        S::band(S::bshl::<4>(v[3]), mask),
        S::band(v[0], mask),
        S::band(v[1], mask),
        S::band(v[2], mask),
        S::band(v[3], mask),
    ]
}

/// Vector `i` of some bytes.
#[inline(always)]
pub(crate) fn load<S: Simd>(bytes: &[u8], i: usize) -> S::B {
    S::load_bytes(part(bytes, 64 * i))
}

/// `BYTES` bytes from `at` on.
#[inline(always)]
pub(crate) fn part<const BYTES: usize>(bytes: &[u8], at: usize) -> &[u8; BYTES] {
    bytes[at..at + BYTES].first_chunk().expect("a whole vector")
}

/// Copies 32 codes of one row into its lane of 256 bytes of nibbles.
#[inline(always)]
pub(crate) fn pack_nibbles(out: &mut [u8], lane: usize, codes: &[u8; TILE]) {
    for v in 0..4 {
        let four: [u8; 4] = std::array::from_fn(|b| codes[4 * v + b] & 15 | codes[16 + 4 * v + b] << 4);
        put(out, 64 * v + 4 * lane, &four);
    }
}

/// Copies 16 bytes of nibbles of one row, already in a tile's order, into its lane.
#[inline(always)]
pub(crate) fn copy_nibbles(out: &mut [u8], lane: usize, stored: &[u8; 16]) {
    for (v, four) in stored.as_chunks::<4>().0.iter().enumerate() {
        put(out, 64 * v + 4 * lane, four);
    }
}

/// Writes bytes at `at`.
#[inline(always)]
pub(crate) fn put<const BYTES: usize>(out: &mut [u8], at: usize, bytes: &[u8; BYTES]) {
    *out[at..at + BYTES].first_chunk_mut().expect("as many bytes") = *bytes;
}
