//! The launches of a product: which kernel multiplies so many rows with weights of a form, and with which sizes.

use mambo_kernel::{Epilogue, OpKind};

use super::form::{Form, Held, TILE_COLS, TILE_ROWS, Tiles};
use super::packed::Packed;
use crate::arch::Arch;
use crate::kernels::binding::{Binding, DeviceFacts};
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

/// Slices of the columns whose sums are added in order.
const SLICES: usize = 4;
/// Rows that the kernel of few rows multiplies at a time.
const FEW_ROWS: usize = 8;
const FEW_THREADS: u32 = 256;
/// Blocks of few rows that share a multiprocessor.
const FEW_BLOCKS: u32 = 2;
/// Shared memory of a block of few rows beside its activations.
const FEW_SHARED: usize = 18 << 10;
/// Pairs of token and expert, and experts, that a block of few rows sorts by itself.
const FEW_PAIRS: usize = 512;
const FEW_EXPERTS: usize = 512;
/// Rows of an expert on average from which the kernel of many rows is faster.
const FEW_AVERAGE: usize = 4;
/// Rows that the kernel of many rows can multiply at a time.
const MANY_ROWS: [usize; 5] = [16, 32, 64, 96, 128];
const MANY_THREADS: u32 = 384;
const MANY_STAGES: usize = 24;
/// The same where there are no warpgroup products, with a fixed number of stages.
const TILED_ROWS: [usize; 2] = [32, 64];
const TILED_THREADS: u32 = 256;
const TILED_STAGES: usize = 4;
/// Shared memory of a block of many rows beside its stages.
const MANY_SHARED: usize = 5 << 10;
/// Units of outputs in a tile of many rows.
const MANY_UNITS: usize = 8;
const SORT_WARPS: usize = 32;
const PLAIN_WARPS: usize = 8;

c_struct! {
    /// Rows that are multiplied with the same weights. Without experts these are consecutive, from `first`; with
    /// experts they are those that the sorted list names from `first`.
    pub(super) struct RowTile { expert: u32, first: u32, count: u32, unused: u32 }

    struct MatmulParams {
        step: Ptr<StepTable>,
        x: View,
        /// Experts of every token.
        ids: View,
        residual: View,
        out: View,
        tiles: Ptr<u8>,
        factors: Ptr<f32>,
        /// Tiles of rows by expert, their number, and the rows in their order; null where the kernel sorts by itself.
        row_tiles: Ptr<RowTile>,
        row_tile_count: Ptr<u32>,
        order: Ptr<u32>,
        col_tiles: u32,
        /// Units of 16 outputs, of one expert.
        units: u32,
        experts: u32,
        epilogue: u32,
        /// Rows of a tile, for few rows.
        tile_rows: u32,
        /// The most rows of a step.
        most_rows: u32,
    }

    struct MoeSortParams {
        step: Ptr<StepTable>,
        ids: View,
        row_tiles: Ptr<RowTile>,
        row_tile_count: Ptr<u32>,
        order: Ptr<u32>,
        experts: u32,
        tile_rows: u32,
    }

    struct MatmulPlainParams {
        step: Ptr<StepTable>,
        x: View,
        ids: View,
        residual: View,
        out: View,
        weights: Ptr<f32>,
        factors: Ptr<f32>,
        epilogue: u32,
    }
}

static FEW: Source = Source {
    stem: "matmul_few",
    text: include_str!("../../../kernels/matmul_few.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text],
};
static MANY: Source = Source {
    stem: "matmul_many",
    text: include_str!("../../../kernels/matmul_many.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text],
};
static TILED: Source = Source {
    stem: "matmul_tiled",
    text: include_str!("../../../kernels/matmul_tiled.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text],
};
static SORT: Source = Source {
    stem: "moe_sort",
    text: include_str!("../../../kernels/moe_sort.cu"),
    structs: &[RowTile::c_text, MoeSortParams::c_text],
};
static PLAIN: Source = Source {
    stem: "matmul_plain",
    text: include_str!("../../../kernels/matmul_plain.cu"),
    structs: &[MatmulPlainParams::c_text],
};

fn few_kernel(tiles: Tiles, has_experts: bool, depth: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&FEW, "matmul_few")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("DEPTH", depth);
    kernel.define("BLOCKS", FEW_BLOCKS).expecting(Expects::Mma)
}

/// Bytes of a stage of columns of so many rows.
fn stage_bytes(tiles: Tiles, rows: usize) -> usize {
    (tiles.parts * rows * 2 * TILE_COLS + MANY_UNITS * tiles.tile_bytes()).next_multiple_of(1024)
}

fn many_kernel(tiles: Tiles, has_experts: bool, rows: usize, stages: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&MANY, "matmul_many")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("TOKENS", rows);
    kernel.define("STAGES", stages).expecting(Expects::Wgmma).only_on(Arch::is_hopper)
}

/// The kernel of many rows where there are no warpgroup products.
fn tiled_kernel(tiles: Tiles, has_experts: bool, rows: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&TILED, "matmul_tiled")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("TOKENS", rows);
    kernel.expecting(Expects::Mma).only_on(|arch| !arch.is_hopper())
}

fn stages(tiles: Tiles, rows: usize, shared_bytes: usize) -> usize {
    ((shared_bytes - MANY_SHARED) / stage_bytes(tiles, rows)).min(MANY_STAGES)
}

fn sort_kernel() -> Specialisation {
    Specialisation::new(&SORT, "moe_sort")
}

/// Rows, outputs and columns that a block of f32 weights takes at a time.
#[derive(Clone, Copy)]
struct PlainSizes {
    rows: usize,
    outputs: usize,
    chunk: usize,
}

const PLAIN_FEW: PlainSizes = PlainSizes { rows: 1, outputs: 1, chunk: 1024 };
const PLAIN_MANY: PlainSizes = PlainSizes { rows: 8, outputs: 4, chunk: 256 };

fn plain_kernel(has_experts: bool, sizes: PlainSizes) -> Specialisation {
    let kernel = Specialisation::new(&PLAIN, "matmul_plain").define("EXPERTS", u32::from(has_experts));
    kernel.define("ROWS", sizes.rows).define("OUTPUTS", sizes.outputs).define("CHUNK", sizes.chunk)
}

/// The kernels of a form, at the sizes that are met most.
pub(super) fn kernels(op: OpKind, held: Held) -> Vec<Specialisation> {
    let has_experts = op == OpKind::MoeMatmul;
    match held.form {
        Form::Rows if has_experts => vec![plain_kernel(true, PLAIN_FEW)],
        Form::Rows => vec![plain_kernel(false, PLAIN_FEW), plain_kernel(false, PLAIN_MANY)],
        Form::Tiles(tiles) => {
            const HOPPER_SHARED: usize = 227 << 10;
            const USUAL_COLS: usize = 2688;
            let mut all = vec![few_kernel(tiles, has_experts, few_depth(tiles, USUAL_COLS))];
            let rows = if tiles.parts == 2 { 64 } else { 128 };
            all.push(many_kernel(tiles, has_experts, rows, stages(tiles, rows, HOPPER_SHARED)));
            all.push(tiled_kernel(tiles, has_experts, rows / 2));
            if has_experts {
                all.push(sort_kernel());
            }
            all
        }
    }
}

fn few_depth(tiles: Tiles, cols: usize) -> usize {
    // The last slice is the largest.
    let col_tiles = cols.div_ceil(TILE_COLS);
    tiles.depth(col_tiles - (SLICES - 1) * col_tiles / SLICES)
}

/// A call whose weight is held in some form.
pub(in crate::kernels) struct Product<'b> {
    pub binding: &'b Binding<'b>,
    pub packed: &'b Packed,
    pub epilogue: Epilogue,
    /// Experts of every token, where rows have experts.
    pub ids: Option<View>,
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("sizes are below 2^32")
}

/// Where sorted rows are kept.
struct Sorted {
    row_tiles: Ptr<RowTile>,
    row_tile_count: Ptr<u32>,
    order: Ptr<u32>,
}

impl Product<'_> {
    /// The launches for the binding's bucket of rows.
    pub fn launches(&self) -> Vec<Launch> {
        match self.packed.form {
            Form::Rows => vec![self.plain()],
            Form::Tiles(tiles) => match self.many_rows(tiles) {
                Some(rows) => self.many(tiles, rows),
                None => self.few(tiles),
            },
        }
    }

    fn facts(&self) -> DeviceFacts {
        self.binding.facts
    }

    fn rows(&self) -> usize {
        self.binding.rows() as usize
    }

    fn epilogue(&self) -> u32 {
        match self.epilogue {
            Epilogue::None => 0,
            Epilogue::Relu2 => 1,
            Epilogue::Residual => 2,
        }
    }

    fn residual(&self) -> View {
        match self.epilogue {
            Epilogue::Residual => self.binding.input(1),
            _ => View::NONE,
        }
    }

    /// Rows of a tile for a kernel of many rows; none where that of few rows is faster.
    fn many_rows(&self, tiles: Tiles) -> Option<usize> {
        let sizes: &[usize] = if self.facts().arch.is_hopper() { &MANY_ROWS } else { &TILED_ROWS };
        let largest = sizes[sizes.len() - 1] / tiles.parts;
        let wanted = match self.ids {
            None if self.rows() <= FEW_ROWS => return None,
            None => self.rows(),
            Some(_) => {
                // A little more than each expert gets on average, so that most have one tile.
                let average = self.rows().div_ceil(self.packed.dims()[0]);
                if average < FEW_AVERAGE && self.rows() <= FEW_PAIRS {
                    return None;
                }
                average + average / 8 + 4
            }
        };
        Some(sizes.iter().copied().find(|rows| *rows >= wanted).unwrap_or(largest).min(largest))
    }

    fn params(&self) -> MatmulParams {
        let [experts, out, cols] = self.packed.dims();
        MatmulParams {
            step: self.binding.step,
            x: self.binding.input(0),
            ids: self.ids.unwrap_or(View::NONE),
            residual: self.residual(),
            out: self.binding.output(0),
            tiles: self.packed.values.ptr(),
            factors: self.packed.factors.ptr(),
            row_tiles: Ptr::NULL,
            row_tile_count: Ptr::NULL,
            order: Ptr::NULL,
            col_tiles: narrow(cols.div_ceil(TILE_COLS)),
            units: narrow(out.div_ceil(TILE_ROWS)),
            experts: narrow(experts),
            epilogue: self.epilogue(),
            tile_rows: FEW_ROWS as u32,
            most_rows: self.binding.rows(),
        }
    }

    fn few(&self, tiles: Tiles) -> Vec<Launch> {
        let [experts, _, cols] = self.packed.dims();
        let mut params = self.params();
        let row_bytes = tiles.parts * 2 * cols.next_multiple_of(TILE_COLS) + 16;
        let room = self.facts().shared_bytes as usize - FEW_SHARED;
        let tile_rows = [FEW_ROWS, 4, 2].into_iter().find(|rows| rows * row_bytes <= room).unwrap_or(1);
        params.tile_rows = narrow(tile_rows);
        let mut launches = Vec::new();
        let is_sorted_before = self.ids.is_some() && (self.rows() > FEW_PAIRS || experts > FEW_EXPERTS);
        if is_sorted_before {
            launches.push(self.sort(&mut params, tile_rows));
        }
        let kernel = few_kernel(tiles, self.ids.is_some(), few_depth(tiles, cols));
        let blocks = self.facts().processors * FEW_BLOCKS;
        let launch = Launch::new(kernel, &params).grid([blocks, 1, 1]).block(FEW_THREADS);
        launches.push(launch.shared(narrow(tile_rows * row_bytes)));
        launches
    }

    fn many(&self, tiles: Tiles, rows: usize) -> Vec<Launch> {
        let mut params = self.params();
        let mut launches = Vec::new();
        if self.ids.is_some() {
            launches.push(self.sort(&mut params, rows));
        }
        let facts = self.facts();
        let launch = if facts.arch.is_hopper() {
            let stages = stages(tiles, rows, facts.shared_bytes as usize);
            let kernel = many_kernel(tiles, self.ids.is_some(), rows, stages);
            // Stages start on a multiple of 1024 bytes.
            let shared = stages * stage_bytes(tiles, rows) + 1024;
            Launch::new(kernel, &params)
                .grid([facts.processors, 1, 1])
                .block(MANY_THREADS)
                .shared(narrow(shared))
        } else {
            let kernel = tiled_kernel(tiles, self.ids.is_some(), rows);
            let shared = TILED_STAGES * tiles.parts * rows * 2 * TILE_COLS;
            Launch::new(kernel, &params)
                .grid([facts.processors, 1, 1])
                .block(TILED_THREADS)
                .shared(narrow(shared))
        };
        launches.push(launch);
        launches
    }

    /// Sorts rows by expert before a product of tiles of so many rows.
    fn sort(&self, params: &mut MatmulParams, tile_rows: usize) -> Launch {
        let (rows, experts) = (self.rows(), self.packed.dims()[0]);
        let tiles = rows.div_ceil(tile_rows) + experts;
        let sorted = Sorted {
            row_tiles: self.binding.scratch(tiles * size_of::<RowTile>()).cast(),
            row_tile_count: self.binding.scratch(size_of::<u32>()).cast(),
            order: self.binding.scratch(rows * size_of::<u32>()).cast(),
        };
        params.row_tiles = sorted.row_tiles;
        params.row_tile_count = sorted.row_tile_count;
        params.order = sorted.order;
        let sort = MoeSortParams {
            step: params.step,
            ids: params.ids,
            row_tiles: sorted.row_tiles,
            row_tile_count: sorted.row_tile_count,
            order: sorted.order,
            experts: params.experts,
            tile_rows: narrow(tile_rows),
        };
        let shared = (SORT_WARPS + 1) * experts * size_of::<u32>();
        Launch::new(sort_kernel(), &sort).block(narrow(32 * SORT_WARPS)).shared(narrow(shared))
    }

    fn plain(&self) -> Launch {
        let params = MatmulPlainParams {
            step: self.binding.step,
            x: self.binding.input(0),
            ids: self.ids.unwrap_or(View::NONE),
            residual: self.residual(),
            out: self.binding.output(0),
            weights: self.packed.values.ptr(),
            factors: self.packed.factors.ptr(),
            epilogue: self.epilogue(),
        };
        let is_few = self.ids.is_some() || self.rows() <= 2;
        let sizes = if is_few { PLAIN_FEW } else { PLAIN_MANY };
        let blocks = (params.out.cols as usize).div_ceil(PLAIN_WARPS * sizes.outputs);
        let grid = [narrow(blocks), narrow(self.rows().div_ceil(sizes.rows)), 1];
        let kernel = plain_kernel(self.ids.is_some(), sizes);
        Launch::new(kernel, &params).grid(grid).block(narrow(32 * PLAIN_WARPS))
    }
}
