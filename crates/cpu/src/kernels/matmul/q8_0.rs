//! `q8_0` weights: `d·code`, code signed.
//!
//! Panel: codes plus 128 `[tile][8 steps][64]`, then f16 scales `[tile][16 rows]`; 34 bytes per row and
//! tile, as stored.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::quant::{Q8Row, TILE, each_block, fetch_ahead, load, prepare_sums};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q8_0;

const BLOCK_BYTES: usize = 34;

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 512]],
    scales: &'a [[u8; 32]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], tiles: usize) -> Self {
        let (codes, scales) = panel.split_at(tiles * 512);
        Panel { codes: codes.as_chunks().0, scales: scales.as_chunks().0 }
    }
}

impl Format for Q8_0 {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE * 544).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
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
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        prepare_sums(x, row, S::WIDE_ZERO, prepared);
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> Q8Row<'a> {
        Q8Row::new(x, row, prepared, Self::PREPARED)
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[Q8Row; R],
    ) -> [[S::F; R]; N] {
        let tiles = cols / TILE;
        assert!(x.iter().all(|x| x.tiles() == tiles));
        let panels = panels.map(|panel| Panel::new(panel, tiles));
        let mut acc = [[S::zero(); R]; N];
        for t in 0..tiles {
            each_row!(N, p, {
                fetch_ahead::<S, R>(&panels[p].codes[t]);
                let scale = S::load_f16(&panels[p].scales[t]);
                let mut sums = [S::isplat(0); R];
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles.
                    sums[r] = S::isplat(unsafe { x[r].prepared(t) });
                });
                for j in 0..8 {
                    let codes = load::<S>(&panels[p].codes[t], j);
                    each_row!(R, r, {
                        // SAFETY: as above.
                        sums[r] = S::dot_wide(sums[r], codes, unsafe { x[r].codes(t) }[j]);
                    });
                }
                each_row!(R, r, {
                    // SAFETY: as above.
                    let scale_x = S::splat(unsafe { x[r].scale(t) });
                    acc[p][r] = S::fma(S::mul(scale, scale_x), S::to_float(sums[r]), acc[p][r]);
                });
            });
        }
        acc
    }
}
