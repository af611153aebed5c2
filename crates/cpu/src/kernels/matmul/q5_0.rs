//! `q5_0` weights: `d·(code − 16)`.
//!
//! Tile: f16 d `[16 rows]`, 64 bytes of fifth bits (bit j of a byte belongs to dot step j), then 256 of
//! nibbles; 22 bytes per row, as stored.

use mambo_tensor::blocks;

use super::coded::{Coded, Kind, Tile, copy_nibbles, nibbles, part, put};
use crate::simd::Simd;

pub(crate) struct Q5_0;

/// Bits 0, 4, 8, ... 28, packed into a byte.
fn every_fourth(bits: u32) -> u8 {
    let bits = bits & 0x1111_1111;
    let bits = (bits | bits >> 3) & 0x0303_0303;
    let bits = (bits | bits >> 6) & 0x000f_000f;
    (bits | bits >> 12) as u8
}

/// Adds the fifth bits to the nibbles.
#[inline(always)]
pub(super) fn widen<S: Simd>(c: [S::B; 8], bits: S::B) -> [S::B; 8] {
    let mask = S::bsplat(16);
    [
        S::bor(c[0], S::band(S::bshl::<4>(bits), mask)),
        S::bor(c[1], S::band(S::bshl::<3>(bits), mask)),
        S::bor(c[2], S::band(S::bshl::<2>(bits), mask)),
        S::bor(c[3], S::band(S::bshl::<1>(bits), mask)),
        S::bor(c[4], S::band(bits, mask)),
        S::bor(c[5], S::band(S::bshr::<1>(bits), mask)),
        S::bor(c[6], S::band(S::bshr::<2>(bits), mask)),
        S::bor(c[7], S::band(S::bshr::<3>(bits), mask)),
    ]
}

impl Coded for Q5_0 {
    type Stored = blocks::Q5_0;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 16;
    const TILE_BYTES: usize = 352;

    #[inline(always)]
    fn pack(stored: &blocks::Q5_0, lane: usize, _own: &mut [u8], tile: &mut [u8]) {
        put(tile, 2 * lane, &stored.d);
        let high = u32::from_le_bytes(stored.qh);
        put::<4>(tile, 32 + 4 * lane, &std::array::from_fn(|b| every_fourth(high >> b)));
        copy_nibbles(&mut tile[96..], lane, &stored.qs);
    }

    #[inline(always)]
    fn tile<S: Simd>(_shared: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let codes = widen::<S>(nibbles::<S>(&tile[96..]), S::load_bytes(part(tile, 32)));
        Tile::whole(codes, S::load_f16(part(tile, 0)))
    }
}
