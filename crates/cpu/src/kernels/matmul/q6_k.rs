//! `q6_k` weights: `d·scale·(code − 32)`, a signed scale per 16 columns, d per 256.
//!
//! Block: f16 d `[16 rows]`. Tile: i8 scales `[2][16 rows]`, 128 bytes of upper bits (two per dot step, four
//! steps to a vector), 256 of nibbles; 210 bytes per row and 256 columns, as stored. A tile's low nibbles
//! are its first 16 columns, so each half of the dot steps has one scale.

use mambo_tensor::blocks;

use super::coded::{Coded, Kind, Tile, load, nibbles, pack_nibbles, part, put};
use crate::simd::Simd;

pub(crate) struct Q6K;

/// Adds the upper bits to the nibbles.
#[inline(always)]
fn widen<S: Simd>(c: [S::B; 8], low: S::B, high: S::B) -> [S::B; 8] {
    let mask = S::bsplat(0x30);
    [
        S::bor(c[0], S::band(S::bshl::<4>(low), mask)),
        S::bor(c[1], S::band(S::bshl::<2>(low), mask)),
        S::bor(c[2], S::band(low, mask)),
        S::bor(c[3], S::band(S::bshr::<2>(low), mask)),
        S::bor(c[4], S::band(S::bshl::<4>(high), mask)),
        S::bor(c[5], S::band(S::bshl::<2>(high), mask)),
        S::bor(c[6], S::band(high, mask)),
        S::bor(c[7], S::band(S::bshr::<2>(high), mask)),
    ]
}

impl Coded for Q6K {
    type Stored = blocks::Q6K;

    const KIND: Kind = Kind::Halves;
    const ZERO: i32 = 32;
    const OWN_BYTES: usize = 32;
    const TILE_BYTES: usize = 416;

    #[inline(always)]
    fn pack(stored: &blocks::Q6K, lane: usize, own: &mut [u8], tiles: &mut [u8]) {
        put(own, 2 * lane, &stored.d);
        for (j, tile) in tiles.chunks_exact_mut(Self::TILE_BYTES).enumerate() {
            let codes = stored.codes(j);
            pack_nibbles(&mut tile[160..], lane, &codes);
            for half in 0..2 {
                let four: [u8; 4] = std::array::from_fn(|b| {
                    (0..4).fold(0, |byte, s| byte | codes[16 * half + 4 * s + b] >> 4 << (2 * s))
                });
                put(tile, 32 + 64 * half + 4 * lane, &four);
                tile[16 * half + lane] = stored.scales[2 * j + half];
            }
        }
    }

    #[inline(always)]
    fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
        [S::load_f16(part(own, 0)), S::zero()]
    }

    #[inline(always)]
    fn tile<S: Simd>([d, _]: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let bits = &tile[32..];
        let codes = widen::<S>(nibbles::<S>(&tile[160..]), load::<S>(bits, 0), load::<S>(bits, 1));
        let scale = S::mul(d, S::load_i8(part(tile, 0)));
        Tile { codes, scale, other: S::mul(d, S::load_i8(part(tile, 16))) }
    }
}
