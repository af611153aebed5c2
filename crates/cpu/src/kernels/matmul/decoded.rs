//! Every stored type without a format of its own: decoded when it is used, with f32 activations.
//!
//! Panel: the stored rows, one after the other. Using it decodes it to `[column][16 rows]` of f32, once
//! for all rows of an item; the product is that of f32 weights. It knows no layout: the stored type's own
//! decoder does.

use mambo_tensor::{DType, decode_row};

use super::format::{Format, PANEL_ROWS, UNPACK_FLOATS};
use super::plain::PlainFormat;
use crate::shared::View;
use crate::simd::Simd;
use crate::stored::F32;

pub(crate) struct Decoded;

impl Format for Decoded {
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;

    fn panel_bytes(dtype: DType, cols: usize) -> usize {
        let row_bytes = dtype.row_bytes(cols).expect("rows are whole blocks");
        (PANEL_ROWS * row_bytes).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], _cols: usize, first_lane: usize, rows: &[&[u8]]) {
        for (i, row) in rows.iter().enumerate() {
            panel[(first_lane + i) * row.len()..][..row.len()].copy_from_slice(row);
        }
    }

    fn unpacked_bytes(cols: usize) -> usize {
        PlainFormat::<F32>::panel_bytes(DType::F32, cols)
    }

    fn unpack(dtype: DType, panel: &[u8], cols: usize, floats: &mut [f32], out: &mut [u8]) {
        let row_bytes = dtype.row_bytes(cols).expect("rows are whole blocks");
        // Every block length divides the piece, and a piece of all rows stays in the first cache.
        let piece_bytes = dtype.row_bytes(UNPACK_FLOATS).expect("a piece is whole blocks");
        for (p, out) in out[..cols * PANEL_ROWS * 4].chunks_mut(UNPACK_FLOATS * PANEL_ROWS * 4).enumerate() {
            let count = out.len() / (PANEL_ROWS * 4);
            let values = &mut floats[..count];
            for lane in 0..PANEL_ROWS {
                let row = &panel[lane * row_bytes..(lane + 1) * row_bytes];
                let piece = &row[p * piece_bytes..row_bytes.min((p + 1) * piece_bytes)];
                decode_row(dtype, piece, values).expect("a piece is whole blocks");
                for (out, value) in out.as_chunks_mut::<{ PANEL_ROWS * 4 }>().0.iter_mut().zip(&*values) {
                    out[4 * lane..4 * lane + 4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(_x: &View, _row: usize, _prepared: &mut [i32]) {}

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
        PlainFormat::<F32>::product::<S, R, N>(panels, cols, x)
    }
}
