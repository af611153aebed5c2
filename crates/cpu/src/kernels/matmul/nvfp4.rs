//! `nvfp4` weights with f32 activations: `scale·e2m1(code)`, an e4m3 scale per 16 columns.
//!
//! Panel: per block of 16 columns bytes `[8][16 rows]`, byte j holding column j in its low nibble and column j + 8 in
//! its high one, then scales `[16 rows]`; 9 bytes per row and block, as stored. Each block is summed separately:
//! `acc = fma(scale, Σ code·x, acc)`. Files of this type are made for activations of four or sixteen bits; rounding
//! them to eight here would change the model.
#![allow(unsafe_code)]

use mambo_tensor::DType;
use mambo_tensor::blocks::{self, Block as _, E2M1};

use super::format::{Format, Many, PANEL_ROWS, fetch_ahead};
use crate::isa::Fetch;
use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;
use crate::stored::widen_e4m3;

pub(crate) struct Nvfp4;

const BLOCK: usize = blocks::Nvfp4::GROUP;
/// Blocks of a row that are stored together.
const STORED: usize = blocks::Nvfp4::ELEMS / BLOCK;
/// Vectors of a panel's block: codes, then scales.
const VECTORS: usize = 9;
/// A block of a panel.
type Block = [[u8; PANEL_ROWS]; VECTORS];

impl Format for Nvfp4 {
    type Home = Self;
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;
    const MANY: Many = Many::Packed;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / BLOCK * size_of::<Block>()).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], _cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let blocks: &mut [Block] = panel.as_chunks_mut().0.as_chunks_mut().0;
        for (lane, row) in rows.iter().enumerate().map(|(r, row)| (first_lane + r, row)) {
            let stored = blocks::Nvfp4::row(row).iter();
            for (stored, blocks) in stored.zip(blocks.chunks_exact_mut(STORED)) {
                for ((block, codes), scale) in blocks.iter_mut().zip(&stored.qs).zip(&stored.scales) {
                    for (out, code) in block.iter_mut().zip(codes) {
                        out[lane] = *code;
                    }
                    // The stored scale is unsigned, and 0x7f stands for zero.
                    block[8][lane] = if *scale == 0x7f { 0 } else { scale & 0x7f };
                }
            }
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, _prepared: &'a [i32]) -> &'a [f32] {
        x.row(row)
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[&[f32]; R],
        fetch: Fetch,
    ) -> [[S::F; R]; N] {
        let blocks = cols / BLOCK;
        let x: [&[[f32; BLOCK]]; R] = x.map(|x| &x.as_chunks().0[..blocks]);
        let panels = panels.map(|panel| &panel.as_chunks().0.as_chunks().0[..blocks]);
        let mut acc = [[S::zero(); R]; N];
        for b in 0..blocks {
            each_row!(N, p, {
                // SAFETY: every panel was cut to `blocks`.
                let block: &Block = unsafe { panels[p].get_unchecked(b) };
                fetch_ahead::<S>(block.as_flattened(), fetch);
                let mut sums = [S::zero(); R];
                for (j, codes) in block[..8].iter().enumerate() {
                    let codes = S::load_u8_int(codes);
                    let (low, high) = (S::look_up(&E2M1, codes), S::look_up(&E2M1, S::isar::<4>(codes)));
                    each_row!(R, r, {
                        // SAFETY: every row was cut to `blocks`.
                        let x = unsafe { x[r].get_unchecked(b) };
                        sums[r] = S::fma(low, S::splat(x[j]), sums[r]);
                        sums[r] = S::fma(high, S::splat(x[j + 8]), sums[r]);
                    });
                }
                let scale = widen_e4m3::<S>(S::load_u8_int(&block[8]));
                each_row!(R, r, {
                    acc[p][r] = S::fma(scale, sums[r], acc[p][r]);
                });
            });
        }
        acc
    }
}
