//! The kernels of a fused layer of experts: sources, parameters and specialisations. Must not know calls.

use mambo_kernel::RouteDims;

use crate::kernels::matmul::{MatmulParams, RowTile, Tiles};
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

/// Words of a tile of rows, as kernels/experts.cuh says.
pub(super) const TILE_WORDS: usize = 8;
/// The most rows of a tile: that of kernels for one token, for two, and for more.
pub(super) const ROWS: [usize; 3] = [1, 2, 4];
/// The most pairs of token and chosen expert.
pub(super) const MOST_PAIRS: usize = 512;
/// Outputs of the router that a block computes.
pub(super) const ROUTER_OUTPUTS: usize = 4;
/// Units of outputs of a block of products.
pub(super) const UNITS: usize = 2;
/// Threads of it.
pub(super) const THREADS: u32 = 256;

c_struct! {
    /// What products multiply with: tiles and factors of all experts, and the sizes of one.
    pub(super) struct ExpertWeights {
        pub tiles: Ptr<u8>,
        pub factors: Ptr<f32>,
        pub col_tiles: u32,
        pub units: u32,
    }

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
        /// Tiles of rows of the shared expert.
        pub shared_tiles: u32,
        /// Blocks of a tile of rows.
        pub shared_blocks: u32,
        pub routed_blocks: u32,
        pub shared_cols: u32,
        pub routed_cols: u32,
        /// Tiles of rows of chosen experts that have blocks of their own.
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
        /// Blocks that have ended, of every two units.
        pub arrivals: Ptr<u32>,
        pub top_k: u32,
        pub shared_tiles: u32,
        pub routed_blocks: u32,
        pub shared_cols: u32,
        pub routed_cols: u32,
        /// Tiles of rows of chosen experts that have blocks of their own.
        pub tiles_at_once: u32,
        /// Where rows and sums start in shared memory.
        pub rows_at: u32,
        pub sums_at: u32,
    }
}

static ROUTE: Source = Source {
    stem: "experts_route",
    text: include_str!("../../../kernels/experts_route.cu"),
    structs: &[ExpertsRouteParams::c_text],
};
static UP: Source = Source {
    stem: "experts_up",
    text: include_str!("../../../kernels/experts_up.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text, ExpertWeights::c_text, ExpertsUpParams::c_text],
};
static DOWN: Source = Source {
    stem: "experts_down",
    text: include_str!("../../../kernels/experts_down.cu"),
    structs: &[RowTile::c_text, MatmulParams::c_text, ExpertWeights::c_text, ExpertsDownParams::c_text],
};

pub(super) fn route_kernel(route: &RouteDims, threads: u32) -> Specialisation {
    let kernel = Specialisation::new(&ROUTE, "experts_route").define("THREADS", threads);
    crate::kernels::moe_route::define(kernel, route).define("OUTPUTS", ROUTER_OUTPUTS)
}

fn product(source: &'static Source, entry: &'static str, tiles: Tiles, rows: usize) -> Specialisation {
    let kernel = tiles.define(Specialisation::new(source, entry)).define("PARTS", 1).define("EXPERTS", 1);
    kernel.define("ROWS", rows).expecting(Expects::Mma)
}

pub(super) fn up_kernel(tiles: Tiles, rows: usize) -> Specialisation {
    product(&UP, "experts_up", tiles, rows)
}

pub(super) fn down_kernel(tiles: Tiles, rows: usize) -> Specialisation {
    product(&DOWN, "experts_down", tiles, rows)
}
