//! A task: panels of a weight times rows of activations, and how its products are stored.
#![allow(unsafe_code)]

use std::ops::Range;

use mambo_kernel::Epilogue;

use super::format::PANEL_ROWS;
use super::{Packed, outliers};
use crate::kernels::glu::gated;
use crate::shared::View;
use crate::simd::{Math, Simd};

/// Panels of one weight matrix times rows of the input.
#[derive(Clone)]
pub(in crate::kernels) struct Task<'a> {
    pub weight: &'a Packed,
    pub expert: usize,
    pub panels: Range<usize>,
    pub rows: TaskRows<'a>,
    pub x: View<'a>,
    pub residual: Option<View<'a>>,
    pub out: View<'a>,
    /// Where the quantised output goes.
    pub rounded: Option<View<'a>>,
    pub epilogue: Epilogue,
}

/// The rows of a task.
#[derive(Clone)]
pub(in crate::kernels) enum TaskRows<'a> {
    /// Consecutive rows.
    Range(Range<usize>),
    /// (token, chosen expert) pairs, `per_input` of which share an input row.
    Pairs { pairs: &'a [i32], per_input: usize },
}

impl TaskRows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            TaskRows::Range(range) => range.len(),
            TaskRows::Pairs { pairs, .. } => pairs.len(),
        }
    }

    /// The input and the output row of row `i`.
    #[inline(always)]
    pub fn at(&self, i: usize) -> (usize, usize) {
        match self {
            TaskRows::Range(range) => (range.start + i, range.start + i),
            TaskRows::Pairs { pairs, per_input } => (pairs[i] as usize / per_input, pairs[i] as usize),
        }
    }
}

impl Task<'_> {
    /// Stores the sums `[panel][row]` of all products, row by row.
    #[inline(always)]
    pub fn store_all<S: Simd>(&self, panels: Range<usize>, sums: &[[f32; PANEL_ROWS]]) {
        for i in 0..self.rows.len() {
            for (panel, sum) in panels.clone().zip(sums[i..].iter().step_by(self.rows.len())) {
                self.store::<S>(panel, i, S::load(sum));
            }
        }
    }

    /// Adds the products of the panel's outliers.
    #[inline(always)]
    fn with_outliers<S: Simd>(&self, panel: usize, row: usize, y: S::F) -> S::F {
        let outliers = self.weight.outliers(self.expert, panel);
        if outliers.is_empty() {
            return y;
        }
        let mut sums = [0.0; PANEL_ROWS];
        S::store(y, &mut sums);
        outliers::add(outliers, &mut sums, |column| self.x.value(row, column));
        S::load(&sums)
    }

    /// Stores the products of a panel with row `i` of the task.
    #[inline(always)]
    pub fn store<S: Simd>(&self, panel: usize, i: usize, y: S::F) {
        let row = self.rows.at(i).1;
        let cols = panel * PANEL_ROWS..self.weight.out().min((panel + 1) * PANEL_ROWS);
        let y = self.with_outliers::<S>(panel, self.rows.at(i).0, y);
        let y = S::mul(self.weight.scale::<S>(self.expert, panel), y);
        // SAFETY: a panel and row belong to one task.
        let out = unsafe { self.out.cols_mut(row, cols.clone()) };
        let y = match (self.epilogue, &self.residual) {
            (Epilogue::Relu2, _) => S::relu2(y),
            (Epilogue::Residual, Some(residual)) => S::add(y, S::load_part(&residual.row(row)[cols])),
            // The gate's factors wait in the output (`products.rs`).
            (Epilogue::Glu(activation), _) => gated::<S>(activation, S::load_part(out), y),
            (Epilogue::None | Epilogue::Residual, _) => y,
        };
        S::store_part(y, out);
    }
}
