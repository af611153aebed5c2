//! The kernels of a fused layer of experts: sources, parameters and specialisations. Must not know calls.

use mambo_kernel::RouteDims;

use crate::kernels::matmul::{MatmulParams, RowTile, Tiles};
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

/// Words of a tile of rows, as kernels/experts.cuh says.
pub(super) const TILE_WORDS: usize = 8;
/// The most rows of a tile: that of kernels for two tokens, and for more.
pub(super) const ROWS: [usize; 2] = [2, 4];
/// The most pairs of token and chosen expert.
pub(super) const MOST_PAIRS: usize = 512;
/// Outputs of the router that a block computes.
pub(super) const ROUTER_OUTPUTS: usize = 4;
/// Most stages of a warp's ring (`MOST_STAGES` in stages.cuh).
pub(super) const MOST_STAGES: usize = 8;
/// Units of outputs of a block of products of one row, and its threads.
pub(super) const ROW_UNITS: usize = 2;
pub(super) const ROW_THREADS: u32 = 256;
/// Threads of a block that adds up.
pub(super) const SUM_THREADS: usize = 256;

c_struct! {
    /// What products multiply with: tiles and factors of all experts, and the sizes of one.
    pub(super) struct ExpertWeights {
        pub tiles: Ptr<u8>,
        pub factors: Ptr<f32>,
        pub col_tiles: u32,
        pub units: u32,
    }

    /// How a block streams weights: tiles of a stage, stages and tiles of a warp, and where sums start in shared memory.
    pub(super) struct Streams { pub stage_tiles: u32, pub stages: u32, pub warp_tiles: u32, pub sums_at: u32 }

    pub(super) struct ExpertsRouteParams {
        pub step: Ptr<StepTable>,
        pub x: View,
        pub ids: View,
        pub weights: View,
        pub norm_weight: Ptr<f32>,
        pub router: Ptr<f32>,
        pub router_factors: Ptr<f32>,
        pub bias: Ptr<f32>,
        /// A copy of x.
        pub residual: Ptr<f32>,
        /// Rows of f16 with their scales.
        pub rounded: Ptr<u8>,
        pub logits: Ptr<f32>,
        pub pair_weights: Ptr<f32>,
        pub tiles: Ptr<u32>,
        pub tile_count: Ptr<u32>,
        /// What is set to zero for the kernels that follow.
        pub clear: Ptr<u32>,
        /// Zero before and after every launch.
        pub arrivals: Ptr<u32>,
        pub cleared: u32,
        pub rounded_stride: u32,
        pub cols: u32,
        pub padded_cols: u32,
        pub tile_rows: u32,
        pub eps: f32,
        pub scale: f32,
        pub unused: u32,
    }

    pub(super) struct ExpertsUpParams {
        pub step: Ptr<StepTable>,
        pub shared: ExpertWeights,
        pub routed: ExpertWeights,
        pub x: Ptr<u8>,
        pub tiles: Ptr<u32>,
        pub tile_count: Ptr<u32>,
        pub shared_out: Ptr<f32>,
        pub routed_out: Ptr<f32>,
        /// The largest value of every row, as the bits of an f32.
        pub shared_largest: Ptr<u32>,
        pub routed_largest: Ptr<u32>,
        pub x_stride: u32,
        pub top_k: u32,
        pub shared_cols: u32,
        pub routed_cols: u32,
        pub streams: Streams,
        /// For one row: tiles of rows of the shared expert, blocks of a tile, and tiles that have blocks of their own.
        pub shared_tiles: u32,
        pub shared_blocks: u32,
        pub routed_blocks: u32,
        pub tiles_at_once: u32,
    }

    pub(super) struct ExpertsDownParams {
        pub step: Ptr<StepTable>,
        pub shared: ExpertWeights,
        pub routed: ExpertWeights,
        pub out: View,
        pub shared_x: Ptr<f32>,
        pub routed_x: Ptr<f32>,
        pub shared_largest: Ptr<u32>,
        pub routed_largest: Ptr<u32>,
        pub tiles: Ptr<u32>,
        pub tile_count: Ptr<u32>,
        pub pair_weights: Ptr<f32>,
        pub residual: Ptr<f32>,
        pub shared_out: Ptr<f32>,
        pub routed_out: Ptr<f32>,
        pub top_k: u32,
        pub shared_cols: u32,
        pub routed_cols: u32,
        /// For one row, as above, and where rows start in shared memory.
        pub shared_tiles: u32,
        pub routed_blocks: u32,
        pub tiles_at_once: u32,
        pub rows_at: u32,
        pub unused: u32,
        /// Blocks that have ended, of every two units.
        pub arrivals: Ptr<u32>,
        pub streams: Streams,
    }
}

impl Streams {
    pub const NONE: Streams = Streams { stage_tiles: 0, stages: 0, warp_tiles: 0, sums_at: 0 };
}

static ROUTE: Source = Source {
    stem: "experts_route",
    text: include_str!("../../../kernels/experts_route.cu"),
    structs: &[ExpertsRouteParams::c_text],
};
static UP: Source =
    Source { stem: "experts_up", text: include_str!("../../../kernels/experts_up.cu"), structs: UP_STRUCTS };
static UP_ROW: Source = Source {
    stem: "experts_up_row",
    text: include_str!("../../../kernels/experts_up_row.cu"),
    structs: UP_STRUCTS,
};
static DOWN: Source = Source {
    stem: "experts_down",
    text: include_str!("../../../kernels/experts_down.cu"),
    structs: DOWN_STRUCTS,
};
static DOWN_ROW: Source = Source {
    stem: "experts_down_row",
    text: include_str!("../../../kernels/experts_down_row.cu"),
    structs: DOWN_STRUCTS,
};
static SUM: Source = Source {
    stem: "experts_sum",
    text: include_str!("../../../kernels/experts_sum.cu"),
    structs: &[ExpertWeights::c_text, Streams::c_text, ExpertsDownParams::c_text],
};
const UP_STRUCTS: &[fn() -> String] =
    &[RowTile::c_text, MatmulParams::c_text, ExpertWeights::c_text, Streams::c_text, ExpertsUpParams::c_text];
const DOWN_STRUCTS: &[fn() -> String] = &[
    RowTile::c_text,
    MatmulParams::c_text,
    ExpertWeights::c_text,
    Streams::c_text,
    ExpertsDownParams::c_text,
];

pub(super) fn route_kernel(route: &RouteDims, threads: u32) -> Specialisation {
    let kernel = Specialisation::new(&ROUTE, "experts_route").define("THREADS", threads);
    crate::kernels::moe_route::define(kernel, route).define("OUTPUTS", ROUTER_OUTPUTS)
}

fn product(source: &'static Source, entry: &'static str, tiles: Tiles) -> Specialisation {
    tiles.define(Specialisation::new(source, entry)).define("PARTS", 1).expecting(Expects::Mma)
}

pub(super) fn up_kernel(tiles: Tiles, rows: usize) -> Specialisation {
    product(&UP, "experts_up", tiles).define("ROWS", rows).define("GROUPS", tiles.groups())
}

pub(super) fn down_kernel(tiles: Tiles, rows: usize) -> Specialisation {
    product(&DOWN, "experts_down", tiles).define("ROWS", rows).define("GROUPS", tiles.groups())
}

pub(super) fn up_row_kernel(tiles: Tiles) -> Specialisation {
    product(&UP_ROW, "experts_up_row", tiles).define("ROWS", 1)
}

pub(super) fn down_row_kernel(tiles: Tiles) -> Specialisation {
    product(&DOWN_ROW, "experts_down_row", tiles).define("ROWS", 1)
}

pub(super) fn sum_kernel() -> Specialisation {
    Specialisation::new(&SUM, "experts_sum")
}
