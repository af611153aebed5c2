//! Weights with a scale and a minimum, `scale·code + low`: `q4_1`, `q5_1`, `q4_k` and `q5_k`.
//!
//! Tile: per-tile scales and minima, 64 bytes of fifth bits if there are any (as in `q5_0`), then 256 bytes of
//! nibbles. The minima are multiplied with the sum of the activation codes.

use std::marker::PhantomData;

use mambo_tensor::blocks::{Block, Q4_1, Q4K, Q5_1, Q5K, scale_and_min};

use super::coded::{Coded, Kind, TILE, Tile, nibbles, pack_nibbles, part, put};
use super::q5_0::widen;
use crate::simd::Simd;

/// One stored type.
pub(crate) trait Line: Send + Sync + 'static {
    /// A block of one row, as stored.
    type Stored: Block;
    /// Whether codes have five bits.
    const FIFTH: bool;
    /// Bytes of a panel's scales and minima: per stored block and per tile.
    const SCALES: (usize, usize);

    /// Packs what all tiles of a stored block of one row share.
    fn pack_own(_stored: &Self::Stored, _lane: usize, _own: &mut [u8]) {}
    /// Packs the scales of its tile `j`.
    fn pack_scales(stored: &Self::Stored, j: usize, lane: usize, scales: &mut [u8]);
    /// The codes of its tile `j`.
    fn codes(stored: &Self::Stored, j: usize) -> [u8; TILE];
    /// What the tiles of a stored block share.
    #[inline(always)]
    fn shared<S: Simd>(_own: &[u8]) -> [S::F; 2] {
        [S::zero(); 2]
    }
    /// Scales of a tile, and minima divided by -128, which is exact.
    fn line<S: Simd>(shared: [S::F; 2], scales: &[u8]) -> (S::F, S::F);
}

/// An f16 scale and an f16 minimum per tile: `q4_1`, or `q5_1` with fifth bits.
pub(crate) struct Single<B>(PhantomData<B>);

/// Puts two f16 of a row into its lanes, the second after those of all rows.
#[inline(always)]
fn put_two(out: &mut [u8], lane: usize, first: &[u8; 2], second: &[u8; 2]) {
    put(out, 2 * lane, first);
    put(out, 32 + 2 * lane, second);
}

macro_rules! single {
    ($block:ident, $fifth:literal) => {
        impl Line for Single<$block> {
            type Stored = $block;

            const FIFTH: bool = $fifth;
            const SCALES: (usize, usize) = (0, 64);

            #[inline(always)]
            fn pack_scales(stored: &$block, _j: usize, lane: usize, scales: &mut [u8]) {
                put_two(scales, lane, &stored.d, &stored.m);
            }

            #[inline(always)]
            fn codes(stored: &$block, _j: usize) -> [u8; TILE] {
                stored.codes()
            }

            #[inline(always)]
            fn line<S: Simd>(_shared: [S::F; 2], scales: &[u8]) -> (S::F, S::F) {
                let low = S::load_f16(part(scales, 32));
                (S::load_f16(part(scales, 0)), S::mul(low, S::splat(-1.0 / 128.0)))
            }
        }
    };
}

single!(Q4_1, false);
single!(Q5_1, true);

/// `d·scale·code − dmin·min`, six bits of scale and min per tile, d and dmin per 256 columns: `q4_k`, or
/// `q5_k` with fifth bits.
pub(crate) struct Nested<B>(PhantomData<B>);

macro_rules! nested {
    ($block:ident, $fifth:literal) => {
        impl Line for Nested<$block> {
            type Stored = $block;

            const FIFTH: bool = $fifth;
            const SCALES: (usize, usize) = (64, 32);

            #[inline(always)]
            fn pack_own(stored: &$block, lane: usize, own: &mut [u8]) {
                put_two(own, lane, &stored.d, &stored.dmin);
            }

            #[inline(always)]
            fn pack_scales(stored: &$block, j: usize, lane: usize, scales: &mut [u8]) {
                (scales[lane], scales[16 + lane]) = scale_and_min(&stored.scales, j);
            }

            #[inline(always)]
            fn codes(stored: &$block, j: usize) -> [u8; TILE] {
                stored.codes(j)
            }

            #[inline(always)]
            fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
                // A minimum is -dmin·min.
                let dmin = S::load_f16(part(own, 32));
                [S::load_f16(part(own, 0)), S::mul(dmin, S::splat(1.0 / 128.0))]
            }

            #[inline(always)]
            fn line<S: Simd>([d, dmin]: [S::F; 2], scales: &[u8]) -> (S::F, S::F) {
                (S::mul(d, S::load_u8(part(scales, 0))), S::mul(dmin, S::load_u8(part(scales, 16))))
            }
        }
    };
}

nested!(Q4K, false);
nested!(Q5K, true);

/// The format of a type with scale and minimum.
pub(crate) struct LineFormat<L>(PhantomData<L>);

impl<L: Line> LineFormat<L> {
    /// Offset of a tile's nibbles.
    const NIBBLES_AT: usize = L::SCALES.1 + if L::FIFTH { 64 } else { 0 };
}

impl<L: Line> Coded for LineFormat<L> {
    type Stored = L::Stored;

    const KIND: Kind = Kind::Line;
    const ZERO: i32 = 0;
    const OWN_BYTES: usize = L::SCALES.0;
    const TILE_BYTES: usize = Self::NIBBLES_AT + 256;

    #[inline(always)]
    fn pack(stored: &L::Stored, lane: usize, own: &mut [u8], tiles: &mut [u8]) {
        L::pack_own(stored, lane, own);
        for (j, tile) in tiles.chunks_exact_mut(Self::TILE_BYTES).enumerate() {
            let codes = L::codes(stored, j);
            pack_nibbles(&mut tile[Self::NIBBLES_AT..], lane, &codes);
            if L::FIFTH {
                let bits = |b: usize| (0..8).fold(0, |byte, s| byte | codes[4 * s + b] >> 4 << s);
                put::<4>(tile, L::SCALES.1 + 4 * lane, &std::array::from_fn(bits));
            }
            L::pack_scales(stored, j, lane, tile);
        }
    }

    #[inline(always)]
    fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
        L::shared::<S>(own)
    }

    #[inline(always)]
    fn tile<S: Simd>(shared: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let mut codes = nibbles::<S>(&tile[Self::NIBBLES_AT..]);
        if L::FIFTH {
            codes = widen::<S>(codes, S::load_bytes(part(tile, L::SCALES.1)));
        }
        let (scale, other) = L::line::<S>(shared, tile);
        Tile::line(codes, scale, other)
    }
}
