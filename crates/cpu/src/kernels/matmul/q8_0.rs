//! `q8_0` weights: `d·code`, code signed.
//!
//! Tile: f16 d `[16 rows]`, then codes plus 128 `[8 steps][64]`; 34 bytes per row, as stored.

use mambo_tensor::blocks;

use super::coded::{Coded, Kind, Tile, load, part, put};
use crate::simd::Simd;

pub(crate) struct Q8_0;

impl Coded for Q8_0 {
    type Stored = blocks::Q8_0;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 128;
    const TILE_BYTES: usize = 544;

    #[inline(always)]
    fn pack(stored: &blocks::Q8_0, lane: usize, _own: &mut [u8], tile: &mut [u8]) {
        put(tile, 2 * lane, &stored.d);
        for (j, four) in stored.qs.as_chunks::<4>().0.iter().enumerate() {
            put(tile, 32 + 64 * j + 4 * lane, &four.map(|code| code ^ 0x80));
        }
    }

    #[inline(always)]
    fn tile<S: Simd>(_shared: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let mut codes = [S::bsplat(0); 8];
        for (j, codes) in codes.iter_mut().enumerate() {
            *codes = load::<S>(&tile[32..], j);
        }
        Tile::whole(codes, S::load_f16(part(tile, 0)))
    }
}
