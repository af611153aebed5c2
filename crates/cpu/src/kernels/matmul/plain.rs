//! f32, f16 and f8 (e4m3) weights with f32 activations.
//!
//! Panel: `[column][16 rows]` in the stored type. `acc = fma(w, x, acc)`, column by column.
//! Bytes: as stored; FLOPs: 2 per weight and row.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use mambo_tensor::DType;

use super::format::{Format, Many, PANEL_ROWS, PanelSlice};
use crate::isa::Fetch;
use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;
use crate::stored::Stored;

/// Columns packed at a time.
const PACK_COLUMNS: usize = 128;

/// The format of a float type.
pub(crate) struct PlainFormat<T>(PhantomData<T>);

impl<T: Stored> Format for PlainFormat<T> {
    type Home = Self;
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;
    const MANY: Many = Many::Floats;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols * PANEL_ROWS * T::BYTES).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let width = PANEL_ROWS * T::BYTES;
        // A block of columns stays in L1 while its lanes are filled.
        for start in (0..cols).step_by(PACK_COLUMNS) {
            let block = &mut panel[start * width..cols.min(start + PACK_COLUMNS) * width];
            for (i, row) in rows.iter().enumerate() {
                let lane = (first_lane + i) * T::BYTES;
                let values = row[start * T::BYTES..].chunks_exact(T::BYTES);
                for (out, value) in block.chunks_exact_mut(width).zip(values) {
                    out[lane..lane + T::BYTES].copy_from_slice(value);
                }
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(slice: &PanelSlice, out: &mut [u8]) {
        let (width, range) = (PANEL_ROWS * T::BYTES, &slice.range);
        let columns = slice.panel[range.start * width..range.end * width].chunks_exact(width);
        for (out, column) in out.as_chunks_mut().0.iter_mut().zip(columns) {
            S::store_le(T::load::<S>(column), out);
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
        _fetch: Fetch,
    ) -> [[S::F; R]; N] {
        let width = PANEL_ROWS * T::BYTES;
        let x = x.map(|x| &x[..cols]);
        let panels = panels.map(|p| &p[..cols * width]);
        let mut acc = [[S::zero(); R]; N];
        for k in 0..cols {
            each_row!(N, p, {
                // SAFETY: every panel was cut to `cols` columns of this width.
                let w = T::load::<S>(unsafe { panels[p].get_unchecked(k * width..(k + 1) * width) });
                each_row!(R, r, {
                    // SAFETY: every row was cut to `cols`.
                    let x = S::splat(unsafe { *x[r].get_unchecked(k) });
                    acc[p][r] = S::fma(w, x, acc[p][r]);
                });
            });
        }
        acc
    }
}
