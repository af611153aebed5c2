//! `nvfp4` weights with f32 activations: `scale·e2m1(code)`, an e4m3 scale per 16 columns.
//!
//! Panel: `[block of 16 columns][8][16 rows]` bytes, whose low nibble is column j and whose high nibble is
//! column j + 8, then scales `[block][16 rows]`; 9 bytes per row and block, as stored. A block is summed by
//! itself: `acc = fma(scale, Σ code·x, acc)`. Files of this type are made for activations of four bits or
//! of sixteen; rounding them to eight here would be a third model.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, Many, each_row};

use super::coded::each_block;
use crate::shared::View;
use crate::simd::Simd;
use crate::stored::widen_e4m3;

pub(crate) struct Nvfp4;

const BLOCK: usize = 16;
const STORED_BYTES: usize = 36;
/// Blocks that are stored together.
const TOGETHER: usize = 4;

/// The values of the four-bit float.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[[u8; 16]; 8]],
    scales: &'a [[u8; 16]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], blocks: usize) -> Self {
        let (codes, scales) = panel.split_at(blocks * 128);
        Panel { codes: codes.as_chunks().0.as_chunks().0, scales: scales.as_chunks().0 }
    }
}

impl Format for Nvfp4 {
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;
    const MANY: Many = Many::Packed;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / BLOCK * 144).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let (codes, scales) = panel.split_at_mut(cols / BLOCK * 128);
        each_block::<STORED_BYTES>(rows, first_lane, |i, lane, stored| {
            for k in 0..TOGETHER {
                let b = i * TOGETHER + k;
                // The stored scale has no sign, and 0x7f means none at all.
                scales[b * 16 + lane] = if stored[k] == 0x7f { 0 } else { stored[k] & 0x7f };
                for j in 0..8 {
                    codes[(b * 8 + j) * 16 + lane] = stored[4 + 8 * k + j];
                }
            }
        });
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
    ) -> [[S::F; R]; N] {
        let blocks = cols / BLOCK;
        let x: [&[[f32; BLOCK]]; R] = x.map(|x| &x.as_chunks().0[..blocks]);
        let panels = panels.map(|panel| Panel::new(panel, blocks));
        let mut acc = [[S::zero(); R]; N];
        for b in 0..blocks {
            each_row!(N, p, {
                let mut sums = [S::zero(); R];
                for (j, codes) in panels[p].codes[b].iter().enumerate() {
                    let codes = S::load_u8_int(codes);
                    let (low, high) = (S::look_up(&E2M1, codes), S::look_up(&E2M1, S::isar::<4>(codes)));
                    each_row!(R, r, {
                        // SAFETY: every row was cut to `blocks`.
                        let x = unsafe { x[r].get_unchecked(b) };
                        sums[r] = S::fma(low, S::splat(x[j]), sums[r]);
                        sums[r] = S::fma(high, S::splat(x[j + 8]), sums[r]);
                    });
                }
                let scale = widen_e4m3::<S>(S::load_u8_int(&panels[p].scales[b]));
                each_row!(R, r, {
                    acc[p][r] = S::fma(scale, sums[r], acc[p][r]);
                });
            });
        }
        acc
    }
}
