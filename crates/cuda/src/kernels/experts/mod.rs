//! A layer of experts as four launches instead of ten calls, for few rows: norm, router and choice; products up; products
//! down; the sum of all that is added. For one row the products down add up: three launches. The bits are those of the calls
//! (`kernels/experts.cuh`).

mod blocks;
mod kernels;
mod layer;
mod pattern;

use mambo_kernel::{BackendError, RouteDims, Scoring};
use mambo_tensor::DType;

use self::blocks::Plan;
use self::kernels::{
    ExpertsDownParams, ExpertsRouteParams, ExpertsUpParams, ROUTER_OUTPUTS, ROW_UNITS, ROWS, SUM_THREADS,
    Streams, TILE_WORDS, down_kernel, down_row_kernel, route_kernel, sum_kernel, up_kernel, up_row_kernel,
};
use self::layer::Layer;
use super::binding::{Binding, narrow};
use super::matmul::{Tiles, tiles_of};
use super::round::row_threads;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::Ptr;
use crate::source::Specialisation;
pub(crate) use pattern::{CALLS, KEPT, is_layer};
use pattern::{DOWN, NORM, ROUTE, SHARED_DOWN, UP};

/// Blocks that share the rows of a router's output.
const ROUTER_ROW_BLOCKS: usize = 8;

/// The kernels, at the sizes that are met most.
pub(crate) fn specialisations(_: Arch) -> Vec<Specialisation> {
    let nano = RouteDims {
        scoring: Scoring::Sigmoid,
        experts: 128,
        top_k: 6,
        groups: 1,
        top_groups: 1,
        normalize: true,
        scale: 1.0,
    };
    let products = [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::NVFP4].into_iter().filter_map(tiles_of);
    let sized = |tiles: Tiles| {
        let rows = ROWS.map(|rows| [up_kernel(tiles, rows), down_kernel(tiles, rows)]);
        [rows.concat(), vec![up_row_kernel(tiles), down_row_kernel(tiles)]].concat()
    };
    products.flat_map(sized).chain([route_kernel(&nano, 512), sum_kernel()]).collect()
}

/// Where the three kernels keep what passes between them.
struct Passed {
    residual: Ptr<f32>,
    rounded: Ptr<u8>,
    logits: Ptr<f32>,
    pair_weights: Ptr<f32>,
    tiles: Ptr<u32>,
    tile_count: Ptr<u32>,
    /// Largest values of the shared expert's rows, then of the chosen ones', then arrivals.
    clear: Ptr<u32>,
    shared_up: Ptr<f32>,
    routed_up: Ptr<f32>,
    shared_down: Ptr<f32>,
    routed_down: Ptr<f32>,
}

/// The launches of the calls of a layer, by call; none where they have to run one by one.
pub(crate) fn bind(calls: &[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError> {
    let Some(layer) = Layer::of(calls)? else { return Ok(None) };
    let Some(plan) = layer.plan() else { return Ok(None) };
    let passed = layer.passed();
    let mut launches = vec![Vec::new(); CALLS];
    launches[NORM].push(layer.route(&passed)?);
    launches[UP].push(layer.up(&passed, &plan));
    launches[DOWN] = layer.down(&passed, &plan);
    Ok(Some(launches))
}

impl Layer<'_> {
    fn passed(&self) -> Passed {
        let scratch = |bytes: usize| self.calls[NORM].scratch(bytes);
        let (tokens, pairs, cols) = (self.tokens, self.pairs(), self.cols());
        Passed {
            residual: scratch(tokens * cols * 4).cast(),
            rounded: scratch(tokens * self.rounded_stride),
            logits: scratch(tokens * self.route.experts * 4).cast(),
            pair_weights: scratch(pairs * 4).cast(),
            tiles: scratch(self.most_tiles() * TILE_WORDS * 4).cast(),
            tile_count: scratch(4).cast(),
            clear: scratch(self.cleared() * 4).cast(),
            shared_up: scratch(tokens * self.shared_up.out() * 4).cast(),
            routed_up: scratch(pairs * self.up.out() * 4).cast(),
            shared_down: scratch(tokens * cols * 4).cast(),
            routed_down: scratch(pairs * cols * 4).cast(),
        }
    }

    fn cleared(&self) -> usize {
        self.tokens + self.pairs() + self.down.units().div_ceil(ROW_UNITS)
    }

    fn route(&self, passed: &Passed) -> Result<Launch, BackendError> {
        let [norm, route] = [&self.calls[NORM], &self.calls[ROUTE]];
        let cols = self.cols();
        let params = ExpertsRouteParams {
            step: norm.step,
            x: norm.input(0),
            ids: route.output(0),
            weights: route.output(1),
            norm_weight: norm.vector(0, cols)?,
            router: self.router.values.ptr(),
            router_factors: self.router.factors.ptr(),
            bias: route.vector(0, self.route.experts)?,
            residual: passed.residual,
            rounded: passed.rounded,
            logits: passed.logits,
            pair_weights: passed.pair_weights,
            tiles: passed.tiles,
            tile_count: passed.tile_count,
            clear: passed.clear,
            arrivals: norm.arrivals,
            cleared: narrow(self.cleared()),
            rounded_stride: narrow(self.rounded_stride),
            cols: narrow(cols),
            padded_cols: narrow(cols.next_multiple_of(128)),
            tile_rows: narrow(self.tile_rows),
            eps: self.eps,
            scale: self.route.scale,
            unused: 0,
        };
        let threads = row_threads(params.cols);
        let blocks = narrow(self.route.experts.div_ceil(ROUTER_OUTPUTS)) + 1;
        let shared = ROUTER_OUTPUTS as u32 * params.padded_cols * 4;
        let launch = Launch::new(route_kernel(&self.route, threads), &params);
        let grid = [blocks, narrow(self.tokens.min(ROUTER_ROW_BLOCKS)), 1];
        Ok(launch.grid(grid).block(threads).shared(shared))
    }

    fn up(&self, passed: &Passed, plan: &Plan) -> Launch {
        let units = [self.shared_up.units(), self.up.units()];
        let params = ExpertsUpParams {
            step: self.calls[UP].step,
            shared: self.shared_up.weights(),
            routed: self.up.weights(),
            x: passed.rounded,
            tiles: passed.tiles,
            tile_count: passed.tile_count,
            shared_out: passed.shared_up,
            routed_out: passed.routed_up,
            shared_largest: passed.clear,
            routed_largest: passed.clear.plus_bytes(self.tokens * 4),
            x_stride: narrow(self.rounded_stride),
            top_k: narrow(self.route.top_k),
            shared_cols: narrow(self.shared_up.out()),
            routed_cols: narrow(self.up.out()),
            streams: Streams::NONE,
            shared_tiles: 1,
            shared_blocks: narrow(units[0].div_ceil(ROW_UNITS)),
            routed_blocks: narrow(units[1].div_ceil(ROW_UNITS)),
            tiles_at_once: narrow(self.tiles_at_once(&self.up, units[0].div_ceil(ROW_UNITS))),
        };
        match plan {
            Plan::Row { up, .. } => up.launch(Launch::new(up_row_kernel(self.up.tiles), &params)),
            Plan::Rows { up, .. } => {
                let params = ExpertsUpParams { streams: up.streams, ..params };
                let kernel = up_kernel(self.up.tiles, self.tile_rows);
                up.launch(Launch::new(kernel, &params), self.block_count(up, units))
            }
        }
    }

    fn down(&self, passed: &Passed, plan: &Plan) -> Vec<Launch> {
        let units = [self.shared_down.units(), self.down.units()];
        let params = ExpertsDownParams {
            step: self.calls[DOWN].step,
            shared: self.shared_down.weights(),
            routed: self.down.weights(),
            out: self.calls[SHARED_DOWN].output(0),
            shared_x: passed.shared_up,
            routed_x: passed.routed_up,
            shared_largest: passed.clear,
            routed_largest: passed.clear.plus_bytes(self.tokens * 4),
            tiles: passed.tiles,
            tile_count: passed.tile_count,
            pair_weights: passed.pair_weights,
            residual: passed.residual,
            shared_out: passed.shared_down,
            routed_out: passed.routed_down,
            top_k: narrow(self.route.top_k),
            shared_cols: narrow(self.shared_up.out()),
            routed_cols: narrow(self.up.out()),
            shared_tiles: 1,
            routed_blocks: narrow(units[1].div_ceil(ROW_UNITS)),
            tiles_at_once: narrow(self.tiles_at_once(&self.down, units[0])),
            rows_at: 0,
            unused: 0,
            arrivals: passed.clear.plus_bytes((self.tokens + self.pairs()) * 4),
            streams: Streams::NONE,
        };
        match plan {
            Plan::Row { down, .. } => {
                let streams = Streams { sums_at: down.sums_at, ..Streams::NONE };
                let params = ExpertsDownParams { rows_at: down.rows_at, streams, ..params };
                vec![down.launch(Launch::new(down_row_kernel(self.down.tiles), &params))]
            }
            Plan::Rows { down, .. } => {
                let params = ExpertsDownParams { streams: down.streams, ..params };
                let kernel = down_kernel(self.down.tiles, self.tile_rows);
                let products = down.launch(Launch::new(kernel, &params), self.block_count(down, units));
                let grid = [narrow(self.cols().div_ceil(SUM_THREADS)), narrow(self.tokens), 1];
                vec![products, Launch::new(sum_kernel(), &params).grid(grid).block(narrow(SUM_THREADS))]
            }
        }
    }
}
