//! Weights with a scale and a minimum, `scale·code + low`: `q4_1`, `q5_1`, `q4_k` and `q5_k`.
//!
//! Tile: per-tile scales and minima, 64 bytes of fifth bits if there are any (as in `q5_0`), then 256 bytes of
//! nibbles. The minima are multiplied with the sum of the activation codes.

use std::marker::PhantomData;

use super::coded::{Coded, Kind, TILE, Tile, nibbles, pack_nibbles, part, put};
use super::q5_0::widen;
use crate::simd::Simd;

/// One stored type.
pub(crate) trait Line: Send + Sync + 'static {
    /// Whether codes have five bits.
    const FIFTH: bool;
    /// Bytes and tiles of a stored block.
    const STORED: (usize, usize);
    /// Bytes of a panel's scales and minima: per stored block and per tile.
    const SCALES: (usize, usize);

    /// Packs what all tiles of a stored block of one row share.
    fn pack_own(_stored: &[u8], _lane: usize, _own: &mut [u8]) {}
    /// Packs the scales of its tile `j`.
    fn pack_scales(stored: &[u8], j: usize, lane: usize, scales: &mut [u8]);
    /// The codes of its tile `j`.
    fn codes(stored: &[u8], j: usize) -> [u8; TILE];
    /// Scales and minima of a tile.
    fn line<S: Simd>(own: &[u8], scales: &[u8]) -> (S::F, S::F);
}

/// An f16 scale and an f16 minimum per tile: `q4_1`, or `q5_1` with fifth bits.
pub(crate) struct Single<const FIFTH: bool>;

impl<const FIFTH: bool> Line for Single<FIFTH> {
    const FIFTH: bool = FIFTH;
    const STORED: (usize, usize) = (if FIFTH { 24 } else { 20 }, 1);
    const SCALES: (usize, usize) = (0, 64);

    #[inline(always)]
    fn pack_scales(stored: &[u8], _j: usize, lane: usize, scales: &mut [u8]) {
        put::<2>(scales, 2 * lane, part(stored, 0));
        put::<2>(scales, 32 + 2 * lane, part(stored, 2));
    }

    #[inline(always)]
    fn codes(stored: &[u8], _j: usize) -> [u8; TILE] {
        let high = if FIFTH { u32::from_le_bytes(*part(stored, 4)) } else { 0 };
        let low: &[u8; 16] = part(stored, Self::STORED.0 - 16);
        std::array::from_fn(|i| low[i % 16] >> (i / 16 * 4) & 15 | ((high >> i & 1) as u8) << 4)
    }

    #[inline(always)]
    fn line<S: Simd>(_own: &[u8], scales: &[u8]) -> (S::F, S::F) {
        (S::load_f16(part(scales, 0)), S::load_f16(part(scales, 32)))
    }
}

/// `d·scale·code − dmin·min`, six bits of scale and min per tile, d and dmin per 256 columns: `q4_k`, or
/// `q5_k` with fifth bits.
pub(crate) struct Nested<const FIFTH: bool>;

/// Scale and minimum of sub-block `j` from their twelve packed bytes.
#[inline(always)]
fn scale_and_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4;
    let min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    (scale, min)
}

impl<const FIFTH: bool> Line for Nested<FIFTH> {
    const FIFTH: bool = FIFTH;
    const STORED: (usize, usize) = (if FIFTH { 176 } else { 144 }, 8);
    const SCALES: (usize, usize) = (64, 32);

    #[inline(always)]
    fn pack_own(stored: &[u8], lane: usize, own: &mut [u8]) {
        put::<2>(own, 2 * lane, part(stored, 0));
        put::<2>(own, 32 + 2 * lane, part(stored, 2));
    }

    #[inline(always)]
    fn pack_scales(stored: &[u8], j: usize, lane: usize, scales: &mut [u8]) {
        (scales[lane], scales[16 + lane]) = scale_and_min(part(stored, 4), j);
    }

    #[inline(always)]
    fn codes(stored: &[u8], j: usize) -> [u8; TILE] {
        let low: &[u8; TILE] = part(stored, Self::STORED.0 - 128 + j / 2 * 32);
        let high: &[u8; TILE] = part(stored, 16);
        let shift = j % 2 * 4;
        std::array::from_fn(|l| low[l] >> shift & 15 | if FIFTH { (high[l] >> j & 1) << 4 } else { 0 })
    }

    #[inline(always)]
    fn line<S: Simd>(own: &[u8], scales: &[u8]) -> (S::F, S::F) {
        let (d, dmin) = (S::load_f16(part(own, 0)), S::load_f16(part(own, 32)));
        let low = S::mul(dmin, S::load_u8(part(scales, 16)));
        (S::mul(d, S::load_u8(part(scales, 0))), S::sub(S::zero(), low))
    }
}

/// The format of a type with scale and minimum.
pub(crate) struct LineFormat<L>(PhantomData<L>);

impl<L: Line> LineFormat<L> {
    /// Offset of a tile's nibbles.
    const NIBBLES_AT: usize = L::SCALES.1 + if L::FIFTH { 64 } else { 0 };
}

impl<L: Line> Coded for LineFormat<L> {
    const KIND: Kind = Kind::Line;
    const ZERO: i32 = 0;
    const STORED_BYTES: usize = L::STORED.0;
    const TILES: usize = L::STORED.1;
    const OWN_BYTES: usize = L::SCALES.0;
    const TILE_BYTES: usize = Self::NIBBLES_AT + 256;

    #[inline(always)]
    fn pack(stored: &[u8], lane: usize, own: &mut [u8], tiles: &mut [u8]) {
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
    fn tile<S: Simd>(own: &[u8], tile: &[u8]) -> Tile<S> {
        let mut codes = nibbles::<S>(&tile[Self::NIBBLES_AT..]);
        if L::FIFTH {
            codes = widen::<S>(codes, S::load_bytes(part(tile, L::SCALES.1)));
        }
        let (scale, low) = L::line::<S>(own, tile);
        Tile::line(codes, scale, low)
    }
}
