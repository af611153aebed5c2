//! `q4_0` weights: `d·(code − 8)`.
//!
//! Panel: nibble planes `[tile][256]`, then f16 scales `[tile][16 rows]`; 18 bytes per row and tile, as
//! stored.

use super::coded::{Coded, Kind, TILE, Tile, copy_nibbles, each_block, nibbles};
use crate::simd::Simd;

pub(crate) struct Q4_0;

const BLOCK_BYTES: usize = 18;

/// The planes of a panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 256]],
    scales: &'a [[u8; 32]],
}

impl Coded for Q4_0 {
    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 8;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        cols / TILE * 288
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let (codes, scales) = panel.split_at_mut(cols / TILE * 256);
        each_block::<BLOCK_BYTES>(rows, first_lane, |t, lane, block| {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            copy_nibbles(&mut codes[t * 256..][..256], lane, &block[2..]);
        });
    }

    #[inline(always)]
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, scales) = panel.split_at(tiles * 256);
        Panel { codes: codes.as_chunks().0, scales: scales.as_chunks().0 }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        Tile::whole(nibbles::<S>(&panel.codes[t]), S::load_f16(&panel.scales[t]))
    }
}
