//! A task: panels of a weight times rows of activations, and how its products are stored.
#![allow(unsafe_code)]

use std::ops::Range;

use mambo_kernel::Epilogue;

use super::format::{PANEL_ROWS, PanelSlice};
use super::{Packed, outliers};
use crate::kernels::glu::gated;
use crate::shared::View;
use crate::simd::{Math, Simd, part, part_mut};

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

impl<'a> Task<'a> {
    /// A part of a panel.
    pub fn slice(&self, panel: usize, range: Range<usize>) -> PanelSlice<'a> {
        let weight = self.weight;
        let panel = weight.panel(self.expert, panel);
        PanelSlice { dtype: weight.dtype(), panel, cols: weight.cols(), range }
    }

    /// Stores the sums `[panel][row]` of all products, row by row.
    #[inline(always)]
    pub fn store_all<S: Simd>(&self, panels: Range<usize>, sums: &[[f32; PANEL_ROWS]]) {
        let cols = self.columns(&panels);
        for i in 0..self.rows.len() {
            let (x_row, row) = self.rows.at(i);
            // SAFETY: panels and a row belong to one task.
            let out = unsafe { self.out.cols_mut(row, cols.clone()) };
            let residual = self.residual.as_ref().map(|r| &r.row(row)[cols.clone()]);
            let sums = sums[i..].iter().step_by(self.rows.len());
            for (p, (panel, sums)) in panels.clone().zip(sums).enumerate() {
                let residual = residual.map(|residual| part(residual, p));
                self.store_sums::<S>((panel, x_row), S::load(sums), residual, part_mut(out, p));
            }
        }
    }

    /// Output columns of panels.
    #[inline(always)]
    fn columns(&self, panels: &Range<usize>) -> Range<usize> {
        panels.start * PANEL_ROWS..self.weight.out().min(panels.end * PANEL_ROWS)
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
        let (x_row, row) = self.rows.at(i);
        let cols = self.columns(&(panel..panel + 1));
        // SAFETY: a panel and row belong to one task.
        let out = unsafe { self.out.cols_mut(row, cols.clone()) };
        let residual = self.residual.as_ref().map(|r| &r.row(row)[cols]);
        self.store_sums::<S>((panel, x_row), y, residual, out);
    }

    /// Stores the sums of a panel with a row of the input.
    #[inline(always)]
    fn store_sums<S: Simd>(
        &self,
        (panel, x_row): (usize, usize),
        y: S::F,
        residual: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let y = self.with_outliers::<S>(panel, x_row, y);
        let y = S::mul(self.weight.scale::<S>(self.expert, panel), y);
        let y = match (self.epilogue, residual) {
            (Epilogue::Relu2, _) => S::relu2(y),
            (Epilogue::Residual, Some(residual)) => S::add(y, S::load_part(residual)),
            // The gate's factors wait in the output (`products.rs`).
            (Epilogue::Glu(activation), _) => gated::<S>(activation, S::load_part(out), y),
            (Epilogue::None | Epilogue::Residual, _) => y,
        };
        S::store_part(y, out);
    }
}
