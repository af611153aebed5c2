//! Many rows of f32 activations against weights that are widened once for all of them.
//!
//! A stretch of a panel is widened into the first cache, where all rows meet it some at a time; between
//! stretches the sums stand in the second cache. Per row and column: one fma.

use std::ops::Range;

use super::format::{PANEL_ROWS, each_row};
use super::multiply::{Task, Unpack};
use crate::isa::Vectorized;
use crate::simd::Simd;

/// Columns of a stretch: every stored block divides it, and half the first cache holds it.
pub(super) const STRETCH: usize = 256;
/// Bytes of the widened stretch.
pub(super) const STRETCH_BYTES: usize = STRETCH * PANEL_ROWS * 4;

/// Some panels against many rows.
pub(super) struct ManyFloats<'a> {
    pub task: &'a Task<'a>,
    pub panels: Range<usize>,
    pub unpack: Unpack<'a>,
    /// Room for sums and for a widened stretch.
    pub floats: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl Vectorized for ManyFloats<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let ManyFloats { task, panels, unpack, floats, bytes: room } = self;
        let (rows, cols) = (task.rows.len(), task.weight.cols());
        let sums: &mut [[f32; PANEL_ROWS]] = floats.as_chunks_mut().0;
        let sums = &mut sums[..panels.len() * rows];
        sums.fill([0.0; PANEL_ROWS]);
        for first in (0..cols).step_by(STRETCH) {
            let stretch = first..cols.min(first + STRETCH);
            for (panel, sums) in panels.clone().zip(sums.chunks_mut(rows)) {
                let bytes = &mut room[..stretch.len() * PANEL_ROWS * 4];
                unpack(panel, stretch.clone(), bytes);
                let weights = bytes.as_chunks().0;
                let mut i = 0;
                while i < rows {
                    let x = |r: usize| &task.x.row(task.rows.at(i + r).0)[stretch.clone()];
                    i += if rows - i >= 8 && S::ROWS >= 8 {
                        let x = [x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)];
                        group::<S, 8>(weights, x, &mut sums[i..])
                    } else if rows - i >= 4 {
                        group::<S, 4>(weights, [x(0), x(1), x(2), x(3)], &mut sums[i..])
                    } else {
                        group::<S, 1>(weights, [x(0)], &mut sums[i..])
                    };
                }
            }
        }
        task.store_all::<S>(panels, sums);
    }
}

/// Adds a stretch's products with `R` rows to their sums. Returns the rows it took.
#[inline(always)]
fn group<S: Simd, const R: usize>(
    weights: &[[u8; 4 * PANEL_ROWS]],
    x: [&[f32]; R],
    sums: &mut [[f32; PANEL_ROWS]],
) -> usize {
    let mut rows = [&[][..]; R];
    for r in 0..R {
        rows[r] = &x[r][..weights.len()];
    }
    let mut acc = [S::zero(); R];
    each_row!(R, r, {
        acc[r] = S::load(&sums[r]);
    });
    for (i, weights) in weights.iter().enumerate() {
        let weights = S::load_le(weights);
        each_row!(R, r, {
            acc[r] = S::fma(weights, S::splat(rows[r][i]), acc[r]);
        });
    }
    each_row!(R, r, {
        S::store(acc[r], &mut sums[r]);
    });
    R
}
