//! `q4_0` weights: `d·(code − 8)`.
//!
//! Tile: f16 d `[16 rows]`, then 256 bytes of nibbles; 18 bytes per row, as stored.

use mambo_tensor::blocks;

use super::coded::{Coded, Kind, Tile, copy_nibbles, nibbles, part, put, upper_nibbles};
use crate::simd::Simd;

pub(crate) struct Q4_0;

impl Coded for Q4_0 {
    type Stored = blocks::Q4_0;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 8;
    const MOVES_ZERO: bool = true;
    const TILE_BYTES: usize = 288;

    #[inline(always)]
    fn pack(stored: &blocks::Q4_0, lane: usize, _own: &mut [u8], tile: &mut [u8]) {
        put(tile, 2 * lane, &stored.d);
        copy_nibbles(&mut tile[32..], lane, &stored.qs);
    }

    #[inline(always)]
    fn tile<S: Simd>(_shared: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let (codes, d) = (&tile[32..], S::load_f16(part(tile, 0)));
        if Self::zero::<S>() == 128 {
            return Tile::whole(upper_nibbles::<S>(codes), S::mul(d, S::splat(1.0 / 16.0)));
        }
        Tile::whole(nibbles::<S>(codes), d)
    }
}
