//! Stored types without a format of their own: decoded on use, with f32 activations.
//!
//! Panel: the stored rows, one after the other. It is decoded to `[column][16 rows]` of f32 once for all rows of a
//! task, by the stored type's own decoder; this file knows no block layout.

use mambo_tensor::{DType, decode_row};

use super::format::{Format, Many, PANEL_ROWS, PanelSlice};
use super::many_floats::COLUMN_BLOCK;
use crate::isa::Fetch;
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Decoded;

impl Format for Decoded {
    type Home = Self;
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;
    const MANY: Many = Many::OnlyFloats;

    fn panel_bytes(dtype: DType, cols: usize) -> usize {
        let row_bytes = dtype.row_bytes(cols).expect("rows are whole blocks");
        (PANEL_ROWS * row_bytes).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], _cols: usize, first_lane: usize, rows: &[&[u8]]) {
        for (i, row) in rows.iter().enumerate() {
            panel[(first_lane + i) * row.len()..][..row.len()].copy_from_slice(row);
        }
    }

    fn unpack<S: Simd>(slice: &PanelSlice, out: &mut [u8]) {
        let PanelSlice { dtype, panel, cols, ref range, .. } = *slice;
        let bytes = |cols: usize| dtype.row_bytes(cols).expect("column blocks are whole blocks");
        let mut values = [0.0; COLUMN_BLOCK];
        let values = &mut values[..range.len()];
        for lane in 0..PANEL_ROWS {
            let row = &panel[lane * bytes(cols)..(lane + 1) * bytes(cols)];
            decode_row(dtype, &row[bytes(range.start)..bytes(range.end)], values).expect("whole blocks");
            for (out, value) in out.as_chunks_mut::<{ PANEL_ROWS * 4 }>().0.iter_mut().zip(&*values) {
                out[4 * lane..4 * lane + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, _prepared: &'a [i32]) -> &'a [f32] {
        x.row(row)
    }

    fn product<S: Simd, const R: usize, const N: usize>(
        _panels: [&[u8]; N],
        _cols: usize,
        _x: &[&[f32]; R],
        _fetch: Fetch,
    ) -> [[S::F; R]; N] {
        unreachable!("decoded types are only multiplied as floats")
    }
}
