//! `q4_0` weights: `d·(code − 8)`.
//!
//! Panel: nibble planes `[tile][256]`, then f16 scales `[tile][16 rows]`; 18 bytes per row and tile, as
//! stored. Per row and tile of activations: 8 dot steps, a conversion, a product and an fma.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::quant::{Q8Row, TILE, copy_nibbles, dot, each_block, fetch_ahead, nibbles, prepare_sums};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q4_0;

const ZERO: i32 = 8;
const BLOCK_BYTES: usize = 18;

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 256]],
    scales: &'a [[u8; 32]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], tiles: usize) -> Self {
        let (codes, scales) = panel.split_at(tiles * 256);
        Panel { codes: codes.as_chunks().0, scales: scales.as_chunks().0 }
    }
}

impl Format for Q4_0 {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE * 288).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let (codes, scales) = panel.split_at_mut(cols / TILE * 256);
        each_block::<BLOCK_BYTES>(rows, first_lane, |t, lane, block| {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            copy_nibbles(&mut codes[t * 256..][..256], lane, &block[2..]);
        });
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        prepare_sums(x, row, ZERO, prepared);
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
                let codes = nibbles::<S>(&panels[p].codes[t]);
                let scale = S::load_f16(&panels[p].scales[t]);
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles.
                    let (start, x_codes, scale_x) =
                        unsafe { (x[r].prepared(t), x[r].codes(t), x[r].scale(t)) };
                    let sum = dot::<S, 0, 8>(S::isplat(start), &codes, x_codes);
                    acc[p][r] = S::fma(S::mul(scale, S::splat(scale_x)), S::to_float(sum), acc[p][r]);
                });
            });
        }
        acc
    }
}
