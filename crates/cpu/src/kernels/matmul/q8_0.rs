//! `q8_0` weights: `d·code`, code signed.
//!
//! Panel: codes plus 128 `[tile][8 steps][64]`, then f16 scales `[tile][16 rows]`; 34 bytes per row and
//! tile, as stored.

use super::coded::{Coded, Kind, TILE, Tile, each_block, load};
use crate::simd::Simd;

pub(crate) struct Q8_0;

const BLOCK_BYTES: usize = 34;

/// The planes of a panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 512]],
    scales: &'a [[u8; 32]],
}

impl Coded for Q8_0 {
    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 128;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        cols / TILE * 544
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let (codes, scales) = panel.split_at_mut(cols / TILE * 512);
        each_block::<BLOCK_BYTES>(rows, first_lane, |t, lane, block| {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            let tile = &mut codes[t * 512..][..512];
            for (j, four) in block[2..].as_chunks::<4>().0.iter().enumerate() {
                tile[64 * j + 4 * lane..][..4].copy_from_slice(&four.map(|c| c ^ 0x80));
            }
        });
    }

    #[inline(always)]
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, scales) = panel.split_at(tiles * 512);
        Panel { codes: codes.as_chunks().0, scales: scales.as_chunks().0 }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        let mut codes = [S::bsplat(0); 8];
        for (j, codes) in codes.iter_mut().enumerate() {
            *codes = load::<S>(&panel.codes[t], j);
        }
        Tile::whole(codes, S::load_f16(&panel.scales[t]))
    }
}
