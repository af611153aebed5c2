//! A layer of experts as three launches instead of ten calls, for few rows: norm, router and choice; products up; products
//! down with all that is added. The bits are those of the calls (`kernels/experts.cuh`).

mod kernels;
mod pattern;

use mambo_kernel::{BackendError, Op, RouteDims, Scoring};
use mambo_tensor::DType;

use self::kernels::{
    ExpertWeights, ExpertsDownParams, ExpertsRouteParams, ExpertsUpParams, MOST_PAIRS, ROUTER_OUTPUTS, ROWS,
    THREADS, TILE_WORDS, UNITS, down_kernel, route_kernel, up_kernel,
};
use super::binding::{Binding, narrow};
use super::matmul::{Form, Packed, SLICES, SUMS_STRIDE, TILE_COLS, TILE_ROWS, Tiles, tiles_of};
use super::round::{HELD, row_threads};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::Ptr;
use crate::source::Specialisation;
pub(crate) use pattern::{CALLS, KEPT, is_layer};
use pattern::{DOWN, NORM, ROUTE, ROUTER, SHARED_DOWN, SHARED_UP, UP};

/// The most tokens of a step that runs so: beyond them the kernels of many rows are better.
const MOST_TOKENS: usize = 64;
/// Blocks that share the rows of a router's output.
const ROUTER_ROW_BLOCKS: usize = 8;
/// The most experts that a block has room to choose among.
const MOST_EXPERTS: usize = 256;
/// Blocks of products of one row that a multiprocessor runs at once.
const BLOCKS_OF_ONE_ROW: usize = 4;
/// Shared memory of a block of products beside weights and rows.
const FIXED_SHARED: usize = 4 << 10;

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
    let sized = |tiles: Tiles| ROWS.map(|rows| [up_kernel(tiles, rows), down_kernel(tiles, rows)]).concat();
    products.flat_map(sized).chain([route_kernel(&nano, 512)]).collect()
}

/// What one product multiplies with.
struct Product<'a> {
    packed: &'a Packed,
    tiles: Tiles,
}

impl<'a> Product<'a> {
    fn of(binding: &'a Binding, experts: usize, out: usize) -> Result<Option<Product<'a>>, BackendError> {
        let packed = binding.packed(0, [experts, out, binding.call.inputs[0].cols])?;
        Ok(match packed.form {
            Form::Tiles(tiles) if tiles.parts == 1 => Some(Product { packed, tiles }),
            _ => None,
        })
    }

    fn out(&self) -> usize {
        self.packed.dims()[1]
    }

    fn units(&self) -> usize {
        self.out().div_ceil(TILE_ROWS)
    }

    fn col_tiles(&self) -> usize {
        self.packed.dims()[2].div_ceil(TILE_COLS)
    }

    fn weights(&self) -> ExpertWeights {
        let (tiles, factors) = (self.packed.values.ptr(), self.packed.factors.ptr());
        ExpertWeights { tiles, factors, col_tiles: narrow(self.col_tiles()), units: narrow(self.units()) }
    }

    /// Bytes of a unit's weights.
    fn unit_bytes(&self) -> usize {
        self.col_tiles() * self.tiles.tile_bytes()
    }

    /// Bytes of a row in shared memory.
    fn row_bytes(&self) -> usize {
        self.col_tiles() * 2 * TILE_COLS + 16
    }
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

/// A layer that can run so.
struct Layer<'a> {
    calls: &'a [Binding<'a>],
    route: RouteDims,
    eps: f32,
    router: &'a Packed,
    up: Product<'a>,
    down: Product<'a>,
    shared_up: Product<'a>,
    shared_down: Product<'a>,
    tokens: usize,
    tile_rows: usize,
    /// Bytes of a row of rounded values.
    rounded_stride: usize,
}

/// The launches of the calls of a layer, by call; none where they have to run one by one.
pub(crate) fn bind(calls: &[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError> {
    let Some(layer) = Layer::of(calls)? else { return Ok(None) };
    let Some((up_shared, down_shared)) = layer.shared_bytes() else { return Ok(None) };
    let passed = layer.passed();
    let mut launches = vec![Vec::new(); CALLS];
    launches[NORM].push(layer.route(&passed)?);
    launches[UP].push(layer.up(&passed, up_shared));
    launches[DOWN].push(layer.down(&passed, down_shared));
    Ok(Some(launches))
}

impl<'a> Layer<'a> {
    fn of(calls: &'a [Binding<'a>]) -> Result<Option<Layer<'a>>, BackendError> {
        let (Op::RmsNorm { eps }, Op::MoeRoute(route)) = (calls[NORM].call.op, calls[ROUTE].call.op) else {
            return Ok(None);
        };
        let (Op::MoeMatmul { out: width, .. }, Op::Matmul { out: shared_width, .. }) =
            (calls[UP].call.op, calls[SHARED_UP].call.op)
        else {
            return Ok(None);
        };
        let (tokens, cols) = (calls[NORM].bucket.tokens, calls[NORM].call.outputs[0].cols);
        let router = calls[ROUTER].packed(0, [1, route.experts, cols])?;
        let products = (
            Product::of(&calls[UP], route.experts, width)?,
            Product::of(&calls[DOWN], route.experts, cols)?,
            Product::of(&calls[SHARED_UP], 1, shared_width)?,
            Product::of(&calls[SHARED_DOWN], 1, cols)?,
        );
        let (Some(up), Some(down), Some(shared_up), Some(shared_down)) = products else { return Ok(None) };
        let has_same_tiles = up.tiles == shared_up.tiles && down.tiles == shared_down.tiles;
        let fits = tokens <= MOST_TOKENS
            && tokens * route.top_k <= MOST_PAIRS
            && route.experts <= MOST_EXPERTS
            && route.groups == 1
            && cols.next_multiple_of(128) <= HELD * row_threads(narrow(cols)) as usize
            && width.is_multiple_of(4)
            && shared_width.is_multiple_of(4);
        if !has_same_tiles || !fits || tokens == 0 || router.form != Form::Rows {
            return Ok(None);
        }
        let tile_rows = tokens.next_power_of_two().min(ROWS[2]);
        let rounded_stride = (up.col_tiles() * 2 * TILE_COLS + 4).next_multiple_of(16);
        Ok(Some(Layer {
            calls,
            route,
            eps,
            router,
            up,
            down,
            shared_up,
            shared_down,
            tokens,
            tile_rows,
            rounded_stride,
        }))
    }

    fn pairs(&self) -> usize {
        self.tokens * self.route.top_k
    }

    /// The most tiles of rows that experts can have.
    fn most_tiles(&self) -> usize {
        self.pairs().min(self.route.experts + self.pairs() / self.tile_rows)
    }

    fn shared_tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile_rows)
    }

    fn cols(&self) -> usize {
        self.down.out()
    }

    /// Tiles that have blocks of their own. Of one row so many that all blocks run at once, beside `others`: a block asks
    /// for its next weights before it is done with those that it has. Of several rows all have: blocks differ in what they
    /// take, and the hardware balances them.
    fn tiles_at_once(&self, product: &Product, others: usize) -> usize {
        if self.tile_rows > 1 {
            return self.most_tiles();
        }
        let processors = self.calls[UP].facts.processors as usize;
        let at_once = (BLOCKS_OF_ONE_ROW * processors).saturating_sub(others);
        self.most_tiles().min((at_once / product.units().div_ceil(UNITS)).max(1))
    }

    /// Shared memory of a block of the products up and down; none where it has too little.
    fn shared_bytes(&self) -> Option<(usize, usize)> {
        let up = UNITS * self.up.unit_bytes() + self.tile_rows * self.up.row_bytes() + self.sum_bytes();
        let down = self.down_sums_at() + self.sum_bytes();
        let router = ROUTER_OUTPUTS * self.cols().next_multiple_of(128) * 4;
        let most = self.calls[NORM].facts.shared_bytes as usize;
        (up.max(down) + FIXED_SHARED <= most && router + (48 << 10) <= most).then_some((up, down))
    }

    /// Bytes of the sums of a block's slices.
    fn sum_bytes(&self) -> usize {
        UNITS * SLICES * self.tile_rows * SUMS_STRIDE * 4
    }

    /// Bytes of the weights of a block of products down: two units of a chosen expert, or one of the shared one.
    fn down_weights(&self) -> usize {
        (UNITS * self.down.unit_bytes()).max(self.shared_down.unit_bytes())
    }

    /// Where their sums start.
    fn down_sums_at(&self) -> usize {
        self.down_weights() + self.tile_rows * self.down.row_bytes().max(self.shared_down.row_bytes())
    }

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
        self.tokens + self.pairs() + self.down.units().div_ceil(UNITS)
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

    fn up(&self, passed: &Passed, shared_bytes: usize) -> Launch {
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
            shared_tiles: narrow(self.shared_tiles()),
            shared_blocks: narrow(self.shared_up.units().div_ceil(UNITS)),
            routed_blocks: narrow(self.up.units().div_ceil(UNITS)),
            shared_cols: narrow(self.shared_up.out()),
            routed_cols: narrow(self.up.out()),
            tiles_at_once: narrow(self.tiles_at_once(&self.up, self.shared_up.units().div_ceil(UNITS))),
        };
        let routed = params.routed_blocks * params.tiles_at_once;
        let blocks = params.shared_blocks * params.shared_tiles + routed;
        let launch = Launch::new(up_kernel(self.up.tiles, self.tile_rows), &params);
        launch.grid([blocks, 1, 1]).block(THREADS).shared(narrow(shared_bytes))
    }

    fn down(&self, passed: &Passed, shared_bytes: usize) -> Launch {
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
            arrivals: passed.clear.plus_bytes((self.tokens + self.pairs()) * 4),
            top_k: narrow(self.route.top_k),
            shared_tiles: narrow(self.shared_tiles()),
            routed_blocks: narrow(self.down.units().div_ceil(UNITS)),
            shared_cols: narrow(self.shared_up.out()),
            routed_cols: narrow(self.up.out()),
            tiles_at_once: narrow(self.tiles_at_once(&self.down, self.shared_down.units())),
            rows_at: narrow(self.down_weights()),
            sums_at: narrow(self.down_sums_at()),
        };
        let routed = params.routed_blocks * params.tiles_at_once;
        let blocks = params.shared.units * params.shared_tiles + routed;
        let launch = Launch::new(down_kernel(self.down.tiles, self.tile_rows), &params);
        launch.grid([blocks, 1, 1]).block(THREADS).shared(narrow(shared_bytes))
    }
}
