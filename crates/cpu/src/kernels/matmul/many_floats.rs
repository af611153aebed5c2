//! Many rows of f32 activations times weights that are widened once for all rows.
//!
//! Panels are taken in pairs and columns in blocks: the column block of a pair is widened into L1 and multiplied with
//! all rows, eight at a time; between column blocks the sums stay in L2. Per row, panel and column: one fma.
#![allow(unsafe_code)]

use std::ops::Range;

use super::format::PANEL_ROWS;
use super::multiply::Unpack;
use super::task::Task;
use crate::isa::Vectorized;
use crate::kernels::each_row::each_row;
use crate::simd::Simd;

/// Columns of a block: a multiple of every stored block, and for two panels about the size of L1.
pub(super) const COLUMN_BLOCK: usize = 256;
/// Panels that are multiplied together.
const PAIR: usize = 2;
/// Bytes of the widened column block.
pub(super) const UNPACKED_BYTES: usize = PAIR * COLUMN_BLOCK * PANEL_ROWS * 4;

/// Panels times many rows.
pub(super) struct ManyFloats<'a> {
    pub task: &'a Task<'a>,
    pub panels: Range<usize>,
    pub unpack: Unpack<'a>,
    /// Scratch for sums and for a widened column block.
    pub floats: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl Vectorized for ManyFloats<'_> {
    type Output = ();
    type Home = Self;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let ManyFloats { task, panels, unpack, floats, bytes: buffer } = self;
        let (rows, cols) = (task.rows.len(), task.weight.cols());
        let sums: &mut [[f32; PANEL_ROWS]] = floats.as_chunks_mut().0;
        let sums = &mut sums[..panels.len() * rows];
        sums.fill([0.0; PANEL_ROWS]);
        for first in (0..cols).step_by(COLUMN_BLOCK) {
            let block = first..cols.min(first + COLUMN_BLOCK);
            for (pair, sums) in sums.chunks_mut(PAIR * rows).enumerate() {
                let own_panels = sums.len() / rows;
                let bytes = block.len() * PANEL_ROWS * 4;
                for (p, out) in buffer[..own_panels * bytes].chunks_mut(bytes).enumerate() {
                    unpack(panels.start + pair * PAIR + p, block.clone(), out);
                }
                let (a, b) = buffer[..own_panels * bytes].split_at(bytes);
                let (a, b) = (a.as_chunks().0, b.as_chunks().0);
                let mut i = 0;
                while i < rows {
                    let x = |r: usize| &task.x.row(task.rows.at(i + r).0)[block.clone()];
                    i += match (rows - i, own_panels) {
                        (8.., 2) if S::ROWS >= 8 => {
                            let eight = [x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)];
                            group::<S, 8, 2>([a, b], eight, sums, (rows, i))
                        }
                        (4.., _) => {
                            let four = [x(0), x(1), x(2), x(3)];
                            if own_panels == 2 {
                                group::<S, 4, 1>([b], four, sums, (rows, rows + i));
                            }
                            group::<S, 4, 1>([a], four, sums, (rows, i))
                        }
                        (_, 2) => group::<S, 1, 2>([a, b], [x(0)], sums, (rows, i)),
                        _ => group::<S, 1, 1>([a], [x(0)], sums, (rows, i)),
                    };
                }
            }
        }
        task.store_all::<S>(panels, sums);
    }
}

/// Adds a column block's products of `N` panels and `R` rows to their sums, which start at `first`; those of the next
/// panel follow `rows` later. Returns `R`.
#[inline(always)]
fn group<S: Simd, const R: usize, const N: usize>(
    weights: [&[[u8; 4 * PANEL_ROWS]]; N],
    x: [&[f32]; R],
    sums: &mut [[f32; PANEL_ROWS]],
    (rows, first): (usize, usize),
) -> usize {
    let count = weights[0].len();
    assert!(weights.iter().all(|w| w.len() == count) && x.iter().all(|x| x.len() == count));
    let mut acc = [[S::zero(); R]; N];
    each_row!(N, p, {
        each_row!(R, r, {
            acc[p][r] = S::load(&sums[p * rows + first + r]);
        });
    });
    for i in 0..count {
        let mut column = [S::zero(); N];
        each_row!(N, p, {
            // SAFETY: all panels have `count` columns.
            column[p] = S::load_le(unsafe { weights[p].get_unchecked(i) });
        });
        each_row!(R, r, {
            // SAFETY: all rows have `count` columns.
            let x = S::splat(unsafe { *x[r].get_unchecked(i) });
            each_row!(N, p, {
                acc[p][r] = S::fma(column[p], x, acc[p][r]);
            });
        });
    }
    each_row!(N, p, {
        each_row!(R, r, {
            S::store(acc[p][r], &mut sums[p * rows + first + r]);
        });
    });
    R
}
