//! The kernels of products: their sources, parameters and specialisations. Must not know calls.

use mambo_kernel::OpKind;

use super::form::{Form, Held, TILE_COLS, Tiles};
use crate::arch::Arch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;
use crate::tensor_map::TensorMap;

/// Slices of the columns whose sums are added in order.
pub(in crate::kernels) const SLICES: usize = 4;
/// Floats from one row's sums to the next (`SUMS_STRIDE` in chain.cuh and matmul_some.cu).
pub(in crate::kernels) const SUMS_STRIDE: usize = 20;
const MANY_STAGES: usize = 24;
/// Shared memory of a block of many rows beside its stages.
const MANY_SHARED: usize = 5 << 10;
/// Units of outputs of a warpgroup in a tile of many rows.
const MANY_UNITS: usize = 4;
/// Threads of a warpgroup.
const GROUP_THREADS: usize = 128;

c_struct! {
    /// Rows that are multiplied with the same weights. Without experts these are consecutive, from `first`; with
    /// experts they are those that the sorted list names from `first`.
    pub(in crate::kernels) struct RowTile { pub expert: u32, pub first: u32, pub count: u32, pub unused: u32 }

    pub(in crate::kernels) struct MatmulParams {
        pub step: Ptr<StepTable>,
        pub x: View,
        /// Experts of every token.
        pub ids: View,
        pub residual: View,
        pub out: View,
        pub tiles: Ptr<u8>,
        pub factors: Ptr<f32>,
        /// Tiles of rows by expert, their number, and the rows in their order; null where the kernel sorts by itself.
        pub row_tiles: Ptr<RowTile>,
        pub row_tile_count: Ptr<u32>,
        pub order: Ptr<u32>,
        pub col_tiles: u32,
        /// Units of 16 outputs, of one expert.
        pub units: u32,
        pub experts: u32,
        pub epilogue: u32,
        /// Rows of a tile, for few rows.
        pub tile_rows: u32,
        /// The most rows of a step.
        pub most_rows: u32,
        /// Stages of a warp's ring, for few rows.
        pub ring_stages: u32,
        /// Most tiles of a slice, for few rows with a block for every unit.
        pub slice_tiles: u32,
    }

    /// What the kernel of many rows gets: its rows as boxes, too.
    pub(super) struct MatmulManyParams {
        pub rows: TensorMap,
        pub product: MatmulParams,
    }

    pub(super) struct MoeGatherParams {
        pub step: Ptr<StepTable>,
        pub from: View,
        /// The same rows in their order.
        pub to: View,
        pub order: Ptr<u32>,
    }

    pub(super) struct MoeSortParams {
        pub step: Ptr<StepTable>,
        pub ids: View,
        pub row_tiles: Ptr<RowTile>,
        pub row_tile_count: Ptr<u32>,
        pub order: Ptr<u32>,
        pub experts: u32,
        pub tile_rows: u32,
        /// Pairs that shared memory has room for.
        pub room: u32,
        pub unused: u32,
    }

    pub(super) struct MatmulPlainParams {
        pub step: Ptr<StepTable>,
        pub x: View,
        pub ids: View,
        pub residual: View,
        pub out: View,
        pub weights: Ptr<f32>,
        pub factors: Ptr<f32>,
        pub epilogue: u32,
    }
}

static FEW: Source = Source {
    stem: "matmul_few",
    text: include_str!("../../../kernels/matmul_few.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text],
};
static UNIT: Source = Source {
    stem: "matmul_unit",
    text: include_str!("../../../kernels/matmul_unit.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text],
};
static MANY: Source = Source {
    stem: "matmul_many",
    text: include_str!("../../../kernels/matmul_many.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text, TensorMap::c_text, MatmulManyParams::c_text],
};
static SOME: Source = Source {
    stem: "matmul_some",
    text: include_str!("../../../kernels/matmul_some.cu"),
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
static GATHER: Source = Source {
    stem: "moe_gather",
    text: include_str!("../../../kernels/moe_gather.cu"),
    structs: &[MoeGatherParams::c_text],
};
static PLAIN: Source = Source {
    stem: "matmul_plain",
    text: include_str!("../../../kernels/matmul_plain.cu"),
    structs: &[MatmulPlainParams::c_text],
};

static PLAIN_TILE: Source = Source {
    stem: "matmul_plain_many",
    text: include_str!("../../../kernels/matmul_plain_many.cu"),
    structs: &[MatmulPlainParams::c_text],
};

pub(super) fn few_kernel(tiles: Tiles, has_experts: bool) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&FEW, "matmul_few")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("GROUPS", tiles.groups());
    kernel.define("CHUNK", tiles.chunk()).expecting(Expects::Mma)
}

pub(super) fn unit_kernel(tiles: Tiles) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&UNIT, "matmul_unit")).define("PARTS", tiles.parts);
    kernel.define("EXPERTS", 0).define("BLOCKS", unit_blocks(tiles)).expecting(Expects::Mma)
}

/// Blocks of four warps that a multiprocessor has registers for: twice the groups of a block of few rows.
pub(super) fn unit_blocks(tiles: Tiles) -> usize {
    2 * tiles.groups()
}

/// A block of some rows: units of outputs, and stages of rows that its warps share.
#[derive(Clone, Copy)]
pub(super) struct SomeBlock {
    pub groups: usize,
    pub x_stages: usize,
}

impl SomeBlock {
    /// Where there are few outputs: many small blocks, each of which hides its latencies by itself.
    pub fn narrow(tiles: Tiles) -> SomeBlock {
        SomeBlock { groups: 2, x_stages: 6 / tiles.parts }
    }

    pub const WIDE: SomeBlock = SomeBlock { groups: 4, x_stages: 3 };
}

pub(super) fn some_kernel(tiles: Tiles, rows: usize, block: SomeBlock) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&SOME, "matmul_some")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", 0).define("ROWS", rows);
    let kernel = kernel.define("GROUPS", block.groups).define("X_STAGES", block.x_stages);
    kernel.define("CHUNK", tiles.chunk()).expecting(Expects::Mma)
}

/// Rows of a tile of many rows that kernels are compiled for, in ascending order.
pub(super) fn many_rows(tiles: Tiles) -> &'static [usize] {
    match tiles.consumers() {
        3 => &[16, 32, 64, 112],
        _ if tiles.parts == 2 => &[16, 32, 64],
        _ => &[16, 32, 64, 128],
    }
}

/// Threads of a block of many rows: its consumers and a producer.
pub(super) fn many_threads(tiles: Tiles) -> usize {
    (tiles.consumers() + 1) * GROUP_THREADS
}

/// Bytes of a stage of columns of so many rows, with what the tile and its rows are.
pub(super) fn stage_bytes(tiles: Tiles, rows: usize) -> usize {
    let weights = tiles.consumers() * MANY_UNITS * tiles.tile_bytes();
    (tiles.parts * rows * 2 * TILE_COLS + weights + 16 + rows * 8).next_multiple_of(1024)
}

pub(super) fn many_kernel(tiles: Tiles, has_experts: bool, rows: usize, stages: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&MANY, "matmul_many")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("TOKENS", rows);
    let kernel = kernel.define("STAGES", stages).define("CONSUMERS", tiles.consumers());
    kernel.expecting(Expects::Wgmma).only_on(Arch::is_hopper)
}

/// The kernel of many rows where there are no warpgroup products.
pub(super) fn tiled_kernel(tiles: Tiles, has_experts: bool, rows: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(&TILED, "matmul_tiled")).define("PARTS", tiles.parts);
    let kernel = kernel.define("EXPERTS", u32::from(has_experts)).define("TOKENS", rows);
    kernel.expecting(Expects::Mma).only_on(|arch| !arch.is_hopper())
}

pub(super) fn stages(tiles: Tiles, rows: usize, shared_bytes: usize) -> usize {
    ((shared_bytes - MANY_SHARED) / stage_bytes(tiles, rows)).min(MANY_STAGES)
}

pub(super) fn gather_kernel() -> Specialisation {
    Specialisation::new(&GATHER, "moe_gather").only_on(Arch::is_hopper)
}

pub(super) fn sort_kernel() -> Specialisation {
    Specialisation::new(&SORT, "moe_sort")
}

/// Rows, outputs and columns that a block of f32 weights takes at a time.
#[derive(Clone, Copy)]
pub(super) struct PlainSizes {
    pub rows: usize,
    pub outputs: usize,
    chunk: usize,
}

pub(super) const PLAIN_FEW: PlainSizes = PlainSizes { rows: 1, outputs: 1, chunk: 1024 };
pub(super) const PLAIN_MANY: PlainSizes = PlainSizes { rows: 8, outputs: 4, chunk: 256 };

pub(super) fn plain_kernel(has_experts: bool, sizes: PlainSizes) -> Specialisation {
    let kernel = Specialisation::new(&PLAIN, "matmul_plain").define("EXPERTS", u32::from(has_experts));
    kernel.define("ROWS", sizes.rows).define("OUTPUTS", sizes.outputs).define("CHUNK", sizes.chunk)
}

/// Rows and outputs of a tile of f32 weights, and the shared memory and threads of its block.
pub(super) const PLAIN_TILE_SIDE: usize = 32;
pub(super) const PLAIN_TILE_SHARED: usize = 3 * 2 * PLAIN_TILE_SIDE * 128 * size_of::<f32>();
pub(super) const PLAIN_TILE_THREADS: usize = 512;

pub(super) fn plain_tile_kernel() -> Specialisation {
    Specialisation::new(&PLAIN_TILE, "matmul_plain_many")
}

/// The kernels of a form, at the sizes that are met most.
pub(super) fn all(op: OpKind, held: Held) -> Vec<Specialisation> {
    let has_experts = op == OpKind::MoeMatmul;
    match held.form {
        Form::Rows if has_experts => vec![plain_kernel(true, PLAIN_FEW)],
        Form::Rows => {
            vec![plain_kernel(false, PLAIN_FEW), plain_kernel(false, PLAIN_MANY), plain_tile_kernel()]
        }
        Form::Tiles(tiles) => {
            const HOPPER_SHARED: usize = 227 << 10;
            let mut all = vec![few_kernel(tiles, has_experts)];
            if !has_experts {
                all.extend([
                    unit_kernel(tiles),
                    some_kernel(tiles, 32, SomeBlock::narrow(tiles)),
                    some_kernel(tiles, 32, SomeBlock::WIDE),
                ]);
            }
            let rows = many_rows(tiles)[many_rows(tiles).len() - 1];
            all.push(many_kernel(tiles, has_experts, rows, stages(tiles, rows, HOPPER_SHARED)));
            all.push(tiled_kernel(tiles, has_experts, if tiles.parts == 2 { 32 } else { 64 }));
            if has_experts {
                all.extend([sort_kernel(), gather_kernel()]);
            }
            all
        }
    }
}
