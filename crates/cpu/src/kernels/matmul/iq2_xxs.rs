//! `iq2_xxs` weights: `± d·(2·scale + 1)/8·coordinate`, eight coordinates to a point of a table of 256.
//!
//! Block: f16 d `[16 rows]`. Tile: 64 bytes of points and 64 of signs, lane r of each holding its row's four
//! groups of eight columns; 66 bytes per row and 256 columns, as stored. Of a byte of signs seven bits are
//! signs (the eighth makes their number even) and the last is a bit of the scale.
//!
//! A shift of points or signs shows the same column of all four groups, so dot step s takes columns s,
//! s + 8, s + 16 and s + 24, and the activations' codes are put into that order first. The looked-up points
//! are never stored: the file's two bits are why one takes this type.

use mambo_tensor::blocks::{self, IQ2_XXS_POINTS};

use super::coded::{Coded, Kind, Tile, load, part, put};
use crate::simd::Simd;

pub(crate) struct Iq2Xxs;

/// What a coordinate (two bits) and its sign (the third) stand for, the zero point added; no point has a 3.
const STEPS: [u8; 16] = [72, 89, 107, 64, 56, 39, 21, 64, 64, 64, 64, 64, 64, 64, 64, 64];
/// The eighth sign of the nibbles of the other seven.
const ODD: [u8; 16] = [0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0];
/// The bits of a scale by the group they are kept in, as a word of bytes.
const SCALE_BITS: i32 = i32::from_ne_bytes([1, 2, 4, 8]);

/// Codes from coordinates in the lowest two bits and signs in the third. A function and not a closure:
/// closures that are used often are not inlined, and then every instruction is a call.
#[inline(always)]
fn step<S: Simd>(coordinates: S::B, signs: S::B) -> S::B {
    let index = S::bor(S::band(coordinates, S::bsplat(3)), S::band(signs, S::bsplat(4)));
    S::blook_up(&STEPS, index)
}

/// Column s of every group of a tile: the codes of step s, and the scale's share of the tile.
#[inline(always)]
fn codes<S: Simd>(tile: &[u8]) -> ([S::B; 8], S::F) {
    let (points, kept) = (load::<S>(tile, 0), load::<S>(tile, 1));
    let scale = S::dot(S::isplat(0), S::band(S::bshr::<7>(kept), S::bsplat(1)), SCALE_BITS);
    let (nibble, seven) = (S::bsplat(15), S::band(kept, S::bsplat(127)));
    let low = S::blook_up(&ODD, S::band(seven, nibble));
    let high = S::blook_up(&ODD, S::band(S::bshr::<4>(seven), nibble));
    let signs = S::bor(seven, S::bxor(low, high));
    let (first, last) = S::blook_up_wide(&IQ2_XXS_POINTS, points);
    let codes = [
        step::<S>(first, S::bshl::<2>(signs)),
        step::<S>(S::bshr::<2>(first), S::bshl::<1>(signs)),
        step::<S>(S::bshr::<4>(first), signs),
        step::<S>(S::bshr::<6>(first), S::bshr::<1>(signs)),
        step::<S>(last, S::bshr::<2>(signs)),
        step::<S>(S::bshr::<2>(last), S::bshr::<3>(signs)),
        step::<S>(S::bshr::<4>(last), S::bshr::<4>(signs)),
        step::<S>(S::bshr::<6>(last), S::bshr::<5>(signs)),
    ];
    // Both are exact: the scale is a whole number of four bits.
    (codes, S::fma(S::to_float(scale), S::splat(0.25), S::splat(0.125)))
}

/// The signs of a sub-block, with a bit of the scale above those of each group.
fn signs_and_scale(sub: &blocks::Iq2XxsSub) -> [u8; 4] {
    let packed = u32::from_le_bytes(sub.signs);
    std::array::from_fn(|g| (packed >> (7 * g)) as u8 & 127 | ((packed >> (28 + g)) as u8 & 1) << 7)
}

impl Coded for Iq2Xxs {
    type Stored = blocks::Iq2Xxs;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 64;
    const TURNED: bool = true;
    const OWN_BYTES: usize = 32;
    const TILE_BYTES: usize = 128;

    #[inline(always)]
    fn pack(stored: &blocks::Iq2Xxs, lane: usize, own: &mut [u8], tiles: &mut [u8]) {
        put(own, 2 * lane, &stored.d);
        for (tile, sub) in tiles.chunks_exact_mut(Self::TILE_BYTES).zip(&stored.subs) {
            put(tile, 4 * lane, &sub.points);
            put(tile, 64 + 4 * lane, &signs_and_scale(sub));
        }
    }

    #[inline(always)]
    fn tile<S: Simd>(own: &[u8], tile: &[u8]) -> Tile<S> {
        let (codes, share) = codes::<S>(tile);
        Tile::whole(codes, S::mul(S::load_f16(part(own, 0)), share))
    }
}
