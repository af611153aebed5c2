//! Quantises what a task has just written, while it is still in cache.
#![allow(unsafe_code)]

use super::format::PANEL_ROWS;
use super::task::Task;
use crate::isa::Vectorized;
use crate::kernels::quantize::round_blocks;
use crate::shared::View;
use crate::simd::Simd;

/// Panels that form one block of the quantised output; tasks cover whole blocks.
pub(super) const BLOCK_PANELS: usize = crate::activation::BLOCK / PANEL_ROWS;

/// Quantises the output rows of a task.
pub(super) struct RoundOutput<'a> {
    pub task: &'a Task<'a>,
    pub rounded: View<'a>,
}

impl Vectorized for RoundOutput<'_> {
    type Output = ();
    type Home = Self;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let RoundOutput { task, rounded } = self;
        let cols = task.panels.start * PANEL_ROWS..task.weight.out().min(task.panels.end * PANEL_ROWS);
        for i in 0..task.rows.len() {
            let row = task.rows.at(i).1;
            // SAFETY: these columns of the row, and hence their blocks, belong to one task.
            unsafe { round_blocks::<S>(task.out.cols_mut(row, cols.clone()), &rounded, row, cols.start) };
        }
    }
}
