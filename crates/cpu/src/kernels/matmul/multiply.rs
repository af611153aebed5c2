//! Multiplies panels of a weight with rows of activations, choosing the method by the number of rows.
//!
//! `matmul` and `moe_matmul` cut their work into tasks and hand them to the weight's [`Multiplier`], which is bound
//! once to a stored type and an instruction set.

use std::marker::PhantomData;
use std::ops::Range;

use mambo_tensor::DType;

use super::bf16::Bf16Tiles;
use super::coded::TILE;
use super::format::{Format, Many, PANEL_ROWS, PanelSlice};
use super::many_codes::{self, ManyCodes};
use super::many_floats::{self, ManyFloats};
use super::many_tiles::{self, ManyTiles};
use super::round_output::{BLOCK_PANELS, RoundOutput};
use super::task::Task;
use super::{Packed, WithFormat, goes_through_tiles, with_format};
use crate::isa::{Fetch, Isa, Vectorized};
use crate::kernels::each_row::each_row;
use crate::kernels::{Cx, ScratchNeed};
use crate::simd::Simd;

/// Rows from which unpacking a panel into memory pays off: normally, and where unpacking in registers is free.
const MANY_ROWS: (usize, usize) = (16, 48);
/// Maximum rows of a task.
const ROW_BLOCK: usize = 256;
/// Maximum rows of a task that multiplies packed panels, and the cache bytes they may take.
const PACKED_ROW_BLOCK: (usize, usize) = (64, 256 << 10);
/// Bytes of packed weights that a task keeps in cache across several row blocks.
const PANEL_BLOCK_BYTES: usize = 192 << 10;
/// Up to this many rows the product is memory-bound and takes as long as with one row.
const FEW_ROWS: usize = 4;
/// Panels of a task with many rows.
const MANY_PANELS: usize = 8;

/// Scratch memory of a task.
pub(in crate::kernels) struct TaskScratch<'a> {
    /// Data prepared for the rows.
    pub words: &'a mut [i32],
    /// Partial sums between column blocks.
    pub floats: &'a mut [f32],
    /// An unpacked column block.
    pub bytes: &'a mut [u8],
}

impl TaskScratch<'_> {
    /// The same memory for one task before another.
    pub fn again(&mut self) -> TaskScratch<'_> {
        TaskScratch { words: &mut *self.words, floats: &mut *self.floats, bytes: &mut *self.bytes }
    }
}

/// How many rows the matrices of a weight are multiplied with: typically, and at most.
pub(in crate::kernels) struct RowCounts {
    pub usual: usize,
    pub most: usize,
}

/// How the panels of a weight are cut into items.
pub(in crate::kernels) struct Cut {
    /// Panels of an item.
    pub panels: usize,
    /// Whether threads take runs of consecutive items, because weights are only streamed.
    pub in_runs: bool,
}

impl Cut {
    /// The same with whole output blocks in each item, if the output is quantised.
    pub fn for_rounding(self, is_rounded: bool) -> Cut {
        if is_rounded { Cut { panels: self.panels.next_multiple_of(BLOCK_PANELS), ..self } } else { self }
    }

    /// The next items of phase 0 for this thread.
    #[inline(always)]
    pub fn next(&self, cx: &Cx, count: usize) -> Option<Range<usize>> {
        if self.in_runs { cx.next_run(0, count) } else { cx.next(0, count).map(|item| item..item + 1) }
    }
}

/// Unpacks a range of a panel.
pub(super) type Unpack<'a> = &'a dyn Fn(usize, Range<usize>, &mut [u8]);

/// How a weight is multiplied.
pub(in crate::kernels) trait Multiplier: Send + Sync {
    /// Runs a task.
    fn multiply(&self, task: &Task, scratch: TaskScratch);
    /// Maximum rows of a task.
    fn row_block(&self, cols: usize) -> usize;
    /// How the panels are cut into items.
    fn cut(&self, weight: &Packed, rows: RowCounts, threads: usize) -> Cut;
    /// Scratch memory of a task.
    fn scratch_need(&self, cols: usize, max_rows: usize) -> ScratchNeed;
}

struct Bind(Isa);

impl WithFormat for Bind {
    type Output = Box<dyn Multiplier>;
    fn run<F: Format>(self) -> Box<dyn Multiplier> {
        let many_rows = match F::MANY {
            Many::Tiles => many_tiles::ROWS,
            _ if self.0.unpacks_for_free() => MANY_ROWS.1,
            _ => MANY_ROWS.0,
        };
        let fetch = [true, false].map(Fetch::on_this_machine);
        Box::new(Bound::<F> { isa: self.0, many_rows, fetch, format: PhantomData })
    }
}

/// The multiplier of a stored type.
pub(in crate::kernels) fn multiplier(isa: Isa, dtype: DType) -> Box<dyn Multiplier> {
    if goes_through_tiles(isa, dtype) {
        return Bind(isa).run::<Bf16Tiles>();
    }
    with_format(dtype, Bind(isa)).expect("only supported types are packed")
}

struct Bound<F> {
    isa: Isa,
    /// From this many rows on, panels are unpacked into memory.
    many_rows: usize,
    /// What is prefetched with one row, and with several.
    fetch: [Fetch; 2],
    format: PhantomData<F>,
}

/// Words prepared for a row.
fn prepared_words<F: Format>(cols: usize) -> usize {
    cols.div_ceil(TILE) * F::PREPARED
}

impl<F: Format> Bound<F> {
    /// Whether this many rows are multiplied with unpacked panels.
    fn is_many(&self, rows: usize) -> bool {
        F::MANY != Many::Packed && (rows >= self.many_rows || F::MANY == Many::OnlyFloats)
    }

    /// Computes and stores a task's products.
    fn products(&self, task: &Task, scratch: TaskScratch) {
        let (isa, weight) = (self.isa, task.weight);
        let words = prepared_words::<F>(weight.cols());
        if words > 0 {
            isa.call(Prepare::<F> { task, words: scratch.words, format: PhantomData });
        }
        let prepared = &scratch.words[..task.rows.len() * words];
        let unpack = |panel: usize, range: Range<usize>, out: &mut [u8]| {
            let panel = weight.panel(task.expert, panel);
            let slice = PanelSlice { dtype: weight.dtype(), panel, cols: weight.cols(), range };
            isa.call(UnpackSlice::<F> { slice, out, format: PhantomData });
        };
        if !self.is_many(task.rows.len()) {
            let fetch = self.fetch[usize::from(task.rows.len() > 1)];
            return isa.call(Few::<F> { task, prepared, fetch, format: PhantomData });
        }
        let TaskScratch { floats, bytes, .. } = scratch;
        // The panel count was chosen for the typical number of rows; an expert may have more.
        for first in task.panels.clone().step_by(MANY_PANELS) {
            let panels = first..task.panels.end.min(first + MANY_PANELS);
            let (unpack, floats, bytes) = (&unpack, &mut *floats, &mut *bytes);
            match F::MANY {
                Many::Codes(kind) => {
                    let transposed = (words > 0).then(|| bytemuck::cast_slice(prepared));
                    let wide = F::WIDE;
                    isa.call(ManyCodes { task, panels, kind, wide, transposed, unpack, floats, bytes });
                }
                Many::Tiles => isa.call(ManyTiles { task, panels, unpack, floats, bytes }),
                _ => isa.call(ManyFloats { task, panels, unpack, floats, bytes }),
            }
        }
    }
}

impl<F: Format> Multiplier for Bound<F> {
    fn multiply(&self, task: &Task, scratch: TaskScratch) {
        self.products(task, scratch);
        if let Some(rounded) = task.rounded {
            self.isa.call(RoundOutput { task, rounded });
        }
    }

    fn row_block(&self, cols: usize) -> usize {
        let (most, bytes) = PACKED_ROW_BLOCK;
        match F::MANY {
            Many::Packed => (bytes / cols.max(1) / 8 * 8).clamp(8, most),
            _ => ROW_BLOCK,
        }
    }

    fn cut(&self, weight: &Packed, rows: RowCounts, threads: usize) -> Cut {
        let row_block = self.row_block(weight.cols());
        // Enough items to balance the load.
        let fair = weight.panels() * rows.most.div_ceil(row_block).max(1) / (threads * 6);
        if self.is_many(rows.usual) {
            // Panels are multiplied in pairs.
            return Cut { panels: (MANY_PANELS.min(fair) / 2 * 2).max(2), in_runs: false };
        }
        let is_even = rows.most <= rows.usual.max(FEW_ROWS);
        if is_even && rows.most <= row_block {
            return Cut { panels: if F::SIDE_BY_SIDE && fair > 4 { 4 } else { 1 }, in_runs: true };
        }
        let panels = PANEL_BLOCK_BYTES / weight.panel_bytes().max(1);
        Cut { panels: panels.min(fair).max(1), in_runs: false }
    }

    fn scratch_need(&self, cols: usize, max_rows: usize) -> ScratchNeed {
        let rows = self.row_block(cols).min(max_rows.max(1));
        let bytes = match F::MANY {
            Many::Codes(_) => many_codes::UNPACKED_BYTES,
            Many::Floats | Many::OnlyFloats => many_floats::UNPACKED_BYTES,
            Many::Tiles => many_tiles::UNPACKED_BYTES,
            Many::Packed => 0,
        };
        let floats = if bytes > 0 { MANY_PANELS * rows * PANEL_ROWS } else { 0 };
        ScratchNeed { floats, words: rows * prepared_words::<F>(cols), bytes, shared: 0 }
    }
}

/// Prepares the rows of a task.
struct Prepare<'a, F> {
    task: &'a Task<'a>,
    words: &'a mut [i32],
    format: PhantomData<F>,
}

impl<F: Format> Vectorized for Prepare<'_, F> {
    type Output = ();
    type Home = F::Home;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let stride = prepared_words::<F>(self.task.weight.cols());
        for (i, words) in self.words.chunks_exact_mut(stride).take(self.task.rows.len()).enumerate() {
            F::prepare::<S>(&self.task.x, self.task.rows.at(i).0, words);
        }
    }
}

struct UnpackSlice<'a, F> {
    slice: PanelSlice<'a>,
    out: &'a mut [u8],
    format: PhantomData<F>,
}

impl<F: Format> Vectorized for UnpackSlice<'_, F> {
    type Output = ();
    type Home = F::Home;

    #[inline(always)]
    fn run<S: Simd>(self) {
        F::unpack::<S>(&self.slice, self.out);
    }
}

/// Few rows: panels are unpacked in registers as they are streamed.
struct Few<'a, F> {
    task: &'a Task<'a>,
    prepared: &'a [i32],
    fetch: Fetch,
    format: PhantomData<F>,
}

impl<F: Format> Vectorized for Few<'_, F> {
    type Output = ();
    type Home = F::Home;

    #[inline(always)]
    fn run<S: Simd>(self) {
        let first = match self.task.rows.len() {
            0..=2 if F::SIDE_BY_SIDE => self.panels::<S, 4>(self.task.panels.start),
            3..=4 if F::SIDE_BY_SIDE => self.panels::<S, 2>(self.task.panels.start),
            _ => self.task.panels.start,
        };
        self.panels::<S, 1>(first);
    }
}

impl<F: Format> Few<'_, F> {
    /// Multiplies panels from `first` on, `N` at a time; returns the first one left over.
    #[inline(always)]
    fn panels<S: Simd, const N: usize>(&self, first: usize) -> usize {
        let Task { weight, expert, .. } = *self.task;
        let mut panel = first;
        while panel + N <= self.task.panels.end {
            self.groups::<S, N>(panel, std::array::from_fn(|n| weight.panel(expert, panel + n)));
            panel += N;
        }
        panel
    }

    /// `N` panels against all rows, in equal groups that fit in registers. Not every group size is compiled: a group
    /// may compute one row twice to fill the next larger size.
    #[inline(always)]
    fn groups<S: Simd, const N: usize>(&self, panel: usize, bytes: [&[u8]; N]) {
        let count = self.task.rows.len();
        let groups = count.div_ceil(S::ROWS);
        for g in 0..groups {
            let rows = g * count / groups..(g + 1) * count / groups;
            match rows.len() {
                1 if N != 2 => self.group::<S, 1, N>(panel, bytes, rows),
                2 if N != 2 => self.group::<S, 2, N>(panel, bytes, rows),
                3..=4 if N != 4 => self.group::<S, 4, N>(panel, bytes, rows),
                5..=6 if N == 1 && S::ROWS == 8 => self.group::<S, 6, N>(panel, bytes, rows),
                7..=8 if N == 1 && S::ROWS == 8 => self.group::<S, 8, N>(panel, bytes, rows),
                more => unreachable!("{more} rows against {N} panels"),
            }
        }
    }

    /// Row `i` of the task.
    #[inline(always)]
    fn row(&self, i: usize) -> F::Row<'_> {
        let stride = prepared_words::<F>(self.task.weight.cols());
        F::row(&self.task.x, self.task.rows.at(i).0, &self.prepared[i * stride..(i + 1) * stride])
    }

    #[inline(always)]
    fn group<S: Simd, const R: usize, const N: usize>(
        &self,
        panel: usize,
        bytes: [&[u8]; N],
        rows: Range<usize>,
    ) {
        let (task, cols) = (self.task, self.task.weight.cols());
        // Unrolled by hand: `from_fn` compiles to a call per row, and this runs for every panel.
        let mut x = [self.row(rows.start); R];
        each_row!(R, r, {
            x[r] = self.row((rows.start + r).min(rows.end - 1));
        });
        let y = F::product::<S, R, N>(bytes, cols, &x, self.fetch);
        for n in 0..N {
            for (r, i) in rows.clone().enumerate() {
                task.store::<S>(panel + n, i, y[n][r]);
            }
        }
    }
}
