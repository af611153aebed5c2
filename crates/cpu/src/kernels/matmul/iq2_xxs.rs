//! `iq2_xxs` weights: `± d·(2·scale + 1)/8·coordinate`; eight coordinates are one point of a table of 256.
//!
//! Block: f16 d `[16 rows]`. Tile: 64 bytes of points and 64 of signs, lane r of each holding its row's four groups of
//! eight columns; 66 bytes per row and 256 columns, as stored. A byte of signs has seven sign bits (the eighth sign
//! makes the number of minus signs even) and one bit of the scale.
//!
//! Shifting points or signs yields the same column of all four groups, so dot step s takes columns s, s + 8, s + 16
//! and s + 24, and the activation codes are transposed to match. Points are looked up on every use: storing them
//! expanded would give up the two bits per weight.

use mambo_tensor::blocks::{self, IQ2_XXS_POINTS};

use super::coded::{Coded, Kind, Tile, load, part, put};
use crate::simd::Simd;

pub(crate) struct Iq2Xxs;

/// The value of a coordinate (two bits) with its sign (the third), plus the zero point; no point has a coordinate 3.
const STEPS: [u8; 16] = [72, 89, 107, 64, 56, 39, 21, 64, 64, 64, 64, 64, 64, 64, 64, 64];
/// Parity of a nibble, as the eighth sign bit.
const ODD: [u8; 16] = [0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0];
/// Weight of the scale bit of each group, as a word of bytes.
const SCALE_BITS: i32 = i32::from_ne_bytes([1, 2, 4, 8]);

/// Codes from coordinates in the lowest two bits and signs in the third. Not a closure: closures used many times are
/// not inlined, and then every instruction becomes a call.
#[inline(always)]
fn step<S: Simd>(coordinates: S::B, signs: S::B) -> S::B {
    let index = S::bor(S::band(coordinates, S::bsplat(3)), S::band(signs, S::bsplat(4)));
    S::blook_up(&STEPS, index)
}

/// The codes of a tile, by dot step, and its part of the scale.
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
    // Exact: the scale is a four-bit integer.
    (codes, S::fma(S::to_float(scale), S::splat(0.25), S::splat(0.125)))
}

/// The signs of a sub-block, with a bit of the scale above each group's signs.
fn signs_and_scale(sub: &blocks::Iq2XxsSub) -> [u8; 4] {
    let packed = u32::from_le_bytes(sub.signs);
    std::array::from_fn(|g| (packed >> (7 * g)) as u8 & 127 | ((packed >> (28 + g)) as u8 & 1) << 7)
}

impl Coded for Iq2Xxs {
    type Stored = blocks::Iq2Xxs;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 64;
    const TRANSPOSED: bool = true;
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
    fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
        [S::load_f16(part(own, 0)), S::zero()]
    }

    #[inline(always)]
    fn tile<S: Simd>([d, _]: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let (codes, share) = codes::<S>(tile);
        Tile::whole(codes, S::mul(d, share))
    }
}
