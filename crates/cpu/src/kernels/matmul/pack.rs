//! Packs a stored weight into panels as it is read, with all threads.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_kernel::{BackendError, WeightSource};
use mambo_tensor::DType;

use super::format::{Format, PANEL_ROWS};
use super::outliers::{Found, Outlier, Outliers};
use super::{WithFormat, with_format};
use crate::memory::Buffer;
use crate::shared::SharedSlice;
use crate::simd::Simd;
use crate::team::Team;
use crate::weights::read_part;

/// A weight in panels: `[expert][panel]`, the last panel of an expert filled up with zeros.
pub(crate) struct Packed {
    dtype: DType,
    experts: usize,
    out: usize,
    cols: usize,
    panel_bytes: usize,
    /// Factors on the products: one per matrix, or one for each lane of every panel.
    scales: Vec<f32>,
    data: Buffer<u8>,
    outliers: Outliers,
}

struct PanelBytes(DType, usize);

impl WithFormat for PanelBytes {
    type Output = usize;
    fn run<F: Format>(self) -> usize {
        F::panel_bytes(self.0, self.1)
    }
}

impl Packed {
    /// Packs `[experts, out, cols]`; the caller has checked type and shape.
    pub fn load(
        team: &mut Team,
        name: &str,
        source: &dyn WeightSource,
        [experts, out, cols]: [usize; 3],
    ) -> Result<Packed, BackendError> {
        let dtype = source.dtype();
        let problem = |problem: &str| BackendError::WeightShape {
            name: name.to_string(),
            shape: format!("[{experts}, {out}, {cols}]"),
            problem: problem.to_string(),
        };
        let row_bytes = dtype.row_bytes(cols).ok_or_else(|| problem("whose rows are not whole blocks"))?;
        let panel_bytes =
            with_format(dtype, PanelBytes(dtype, cols)).ok_or_else(|| problem("of a type without panels"))?;
        let bytes = [experts, out.div_ceil(PANEL_ROWS), panel_bytes]
            .into_iter()
            .try_fold(1usize, usize::checked_mul)
            .ok_or_else(|| problem("which is too large"))?;
        let data = Buffer::zeroed(bytes, &format!("weight `{name}`"))?;
        let scales = vec![1.0; experts * out.div_ceil(PANEL_ROWS) * PANEL_ROWS];
        let mut packed =
            Packed { dtype, experts, out, cols, panel_bytes, scales, data, outliers: Outliers::default() };
        let found = Found::default();
        let mut first_row = 0;
        for part in 0..source.part_count() {
            let stored = read_part(name, source, part)?;
            let rows = stored.bytes.len() / row_bytes.max(1);
            if rows * row_bytes != stored.bytes.len() || first_row + rows > experts * out {
                return Err(problem("whose stored bytes are of another size"));
            }
            for row in 0..rows {
                let lane = packed.lane(first_row + row);
                packed.scales[lane] = stored.row_scale(row);
            }
            packed.pack_rows(team, first_row, row_bytes, &stored.bytes, &found);
            first_row += rows;
            drop(stored);
            source.release(part);
        }
        if first_row != experts * out {
            return Err(problem("of which rows are missing"));
        }
        packed.join_scales();
        packed.outliers = found.sort(experts * packed.panels());
        Ok(packed)
    }

    /// The place of a row's factor among the lanes of all panels.
    fn lane(&self, row: usize) -> usize {
        row / self.out * self.panels() * PANEL_ROWS + row % self.out
    }

    /// Keeps one factor per matrix where its rows have the same.
    fn join_scales(&mut self) {
        let (out, lanes) = (self.out, self.panels() * PANEL_ROWS);
        let rows = |matrix: &[f32]| matrix[..out].iter().all(|scale| *scale == matrix[0]);
        if self.scales.chunks_exact(lanes).all(rows) {
            self.scales = self.scales.iter().copied().step_by(lanes).collect();
        }
    }

    /// Packs consecutive rows, panel by panel.
    fn pack_rows(
        &mut self,
        team: &mut Team,
        first_row: usize,
        row_bytes: usize,
        stored: &[u8],
        found: &Found,
    ) {
        let rows = stored.len() / row_bytes.max(1);
        if rows == 0 {
            return;
        }
        let (out, panels, panel_bytes) = (self.out, self.panels(), self.panel_bytes);
        let panel_of = |row: usize| row / out * panels + row % out / PANEL_ROWS;
        let (first_panel, last_panel) = (panel_of(first_row), panel_of(first_row + rows - 1));
        let (dtype, cols) = (self.dtype, self.cols);
        let data = SharedSlice::new(&mut self.data);
        let next = AtomicUsize::new(first_panel);
        team.run(&|_| {
            loop {
                let panel = next.fetch_add(1, Ordering::Relaxed);
                if panel > last_panel {
                    return;
                }
                let start = panel / panels * out + panel % panels * PANEL_ROWS;
                let end = (start + PANEL_ROWS).min((panel / panels + 1) * out);
                // SAFETY: the counter gives each panel to one thread.
                let bytes = unsafe { data.write(panel * panel_bytes..(panel + 1) * panel_bytes) };
                let range = start.max(first_row)..end.min(first_row + rows);
                let mut own = [&[][..]; PANEL_ROWS];
                for (own, row) in own.iter_mut().zip(range.clone()) {
                    *own = &stored[(row - first_row) * row_bytes..][..row_bytes];
                }
                let (first_lane, rows) = (range.start - start, &own[..range.len()]);
                let outliers = with_format(dtype, PackRows { dtype, panel: bytes, cols, first_lane, rows });
                found.take(panel, outliers.unwrap_or_default());
            }
        });
    }

    /// The stored type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Matrices in the weight.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Output rows of a matrix.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Factors on the products of a panel.
    #[inline(always)]
    pub fn scale<S: Simd>(&self, expert: usize, panel: usize) -> S::F {
        if self.scales.len() == self.experts {
            return S::splat(self.scales[expert]);
        }
        let lanes = self.scales.as_chunks::<PANEL_ROWS>().0;
        S::load(&lanes[expert * self.panels() + panel])
    }

    /// Panels of a matrix.
    pub fn panels(&self) -> usize {
        self.out.div_ceil(PANEL_ROWS)
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of the whole weight.
    pub fn bytes(&self) -> usize {
        self.data.len() + 4 * self.scales.len() + self.outliers.bytes()
    }

    /// The weights that a panel does not hold.
    #[inline(always)]
    pub fn outliers(&self, expert: usize, panel: usize) -> &[Outlier] {
        self.outliers.of(expert * self.panels() + panel)
    }

    /// One panel of one matrix.
    #[inline(always)]
    pub fn panel(&self, expert: usize, panel: usize) -> &[u8] {
        &self.data[(expert * self.panels() + panel) * self.panel_bytes..][..self.panel_bytes]
    }
}

struct PackRows<'a> {
    dtype: DType,
    panel: &'a mut [u8],
    cols: usize,
    first_lane: usize,
    rows: &'a [&'a [u8]],
}

impl WithFormat for PackRows<'_> {
    type Output = Vec<Outlier>;
    fn run<F: Format>(self) -> Vec<Outlier> {
        F::pack(self.dtype, self.panel, self.cols, self.first_lane, self.rows);
        let mut outliers = Vec::new();
        for (i, row) in self.rows.iter().enumerate() {
            F::outliers(self.panel, self.first_lane + i, row, &mut outliers);
        }
        outliers
    }
}
