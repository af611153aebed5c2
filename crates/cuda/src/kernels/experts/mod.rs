//! A layer of experts as four launches instead of ten calls, for few rows: norm, router and choice; products up; products
//! down; the sum of all that is added. For one row the products down add up: three launches. The bits are those of the calls
//! (`kernels/experts.cuh`).

mod kernels;
mod pattern;

use mambo_kernel::{BackendError, Op, RouteDims, Scoring};
use mambo_tensor::DType;

use self::kernels::{
    ExpertWeights, ExpertsDownParams, ExpertsRouteParams, ExpertsUpParams, MOST_PAIRS, MOST_STAGES,
    ROUTER_OUTPUTS, ROW_THREADS, ROW_UNITS, ROWS, SUM_THREADS, Streams, TILE_WORDS, down_kernel,
    down_row_kernel, route_kernel, sum_kernel, up_kernel, up_row_kernel,
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
/// Blocks of products that a multiprocessor runs at once, where registers allow it.
const BLOCKS: usize = 2;
/// Shared memory of a block of products beside what it asks for, and what every block takes beside that.
const FIXED_SHARED: usize = 3 << 9;
const BLOCK_SHARED: usize = 1 << 10;
/// The same of one of one row, and how many of those a multiprocessor runs at once.
const ROW_SHARED: usize = 4 << 10;
const ROW_BLOCKS: usize = 4;
/// The fewest stages of a warp's ring that keep it busy.
const LEAST_STAGES: usize = 2;

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

/// How the blocks of products stream weights.
struct Blocks {
    streams: Streams,
    /// Shared memory of a block.
    shared_bytes: usize,
    threads: usize,
    /// Blocks that run at once.
    at_once: usize,
}

/// The blocks of products of one row.
struct RowBlocks {
    /// Where the row and sums start in shared memory.
    rows_at: u32,
    sums_at: u32,
    /// Shared memory of a block.
    shared_bytes: usize,
    blocks: usize,
}

/// How products run.
enum Plan {
    /// By kernels of one row.
    Row { up: RowBlocks, down: RowBlocks },
    /// By those of several.
    Rows { up: Blocks, down: Blocks },
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
    let Some(plan) = layer.plan() else { return Ok(None) };
    let passed = layer.passed();
    let mut launches = vec![Vec::new(); CALLS];
    launches[NORM].push(layer.route(&passed)?);
    launches[UP].push(layer.up(&passed, &plan));
    launches[DOWN] = layer.down(&passed, &plan);
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
        let router_bytes = ROUTER_OUTPUTS * cols.next_multiple_of(128) * 4;
        let has_same_tiles = up.tiles == shared_up.tiles && down.tiles == shared_down.tiles;
        let fits = tokens <= MOST_TOKENS
            && tokens * route.top_k <= MOST_PAIRS
            && route.experts <= MOST_EXPERTS
            && route.groups == 1
            && cols.next_multiple_of(128) <= HELD * row_threads(narrow(cols)) as usize
            && width.is_multiple_of(4)
            && shared_width.is_multiple_of(4)
            && router_bytes + (48 << 10) <= calls[NORM].facts.shared_bytes as usize;
        if !has_same_tiles || !fits || tokens == 0 || router.form != Form::Rows {
            return Ok(None);
        }
        let tile_rows = tokens.next_power_of_two().clamp(ROWS[0], ROWS[1]);
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

    fn cols(&self) -> usize {
        self.down.out()
    }

    /// What blocks of so many warps have room for beside rows and sums: several of them on a multiprocessor, or else one.
    fn blocks(&self, tiles: Tiles, warps: usize, beside: usize) -> Option<Blocks> {
        let facts = self.calls[UP].facts;
        let several: &[usize] = if facts.arch.is_hopper() { &[BLOCKS, 1] } else { &[1] };
        several.iter().find_map(|blocks| {
            let own = (facts.shared_bytes as usize + BLOCK_SHARED) / blocks - BLOCK_SHARED;
            let room = own.checked_sub(FIXED_SHARED + beside)? / warps / tiles.tile_bytes();
            let stages = (room / tiles.chunk()).min(MOST_STAGES);
            let warp_tiles = stages * tiles.chunk();
            let ring = warps * warp_tiles * tiles.tile_bytes();
            let [stage_tiles, narrow_stages, warp_tiles] = [tiles.chunk(), stages, warp_tiles].map(narrow);
            (stages >= LEAST_STAGES).then(|| Blocks {
                streams: Streams { stage_tiles, stages: narrow_stages, warp_tiles, sums_at: narrow(ring) },
                shared_bytes: ring + beside,
                threads: warps * 32,
                at_once: blocks * facts.processors as usize,
            })
        })
    }

    /// Blocks whose groups of warps take units times tiles of rows.
    fn of_rows(&self, routed: &Product, shared: &Product) -> Option<Blocks> {
        let warps = routed.tiles.groups() * SLICES;
        let rows = self.tile_rows * routed.row_bytes().max(shared.row_bytes());
        let sums = 2 * warps * self.tile_rows * SUMS_STRIDE * 4;
        let mut blocks = self.blocks(routed.tiles, warps, rows + sums)?;
        blocks.streams.sums_at += narrow(rows);
        Some(blocks)
    }

    fn plan(&self) -> Option<Plan> {
        if self.tokens == 1 {
            return self.plan_of_row();
        }
        let up = self.of_rows(&self.up, &self.shared_up)?;
        Some(Plan::Rows { up, down: self.of_rows(&self.down, &self.shared_down)? })
    }

    /// Of one row so many tiles have blocks of their own that all blocks run at once, beside `others`: a block asks for its
    /// next weights before it is done with those that it has.
    fn tiles_at_once(&self, product: &Product, others: usize) -> usize {
        let at_once = (ROW_BLOCKS * self.calls[UP].facts.processors as usize).saturating_sub(others);
        self.most_tiles().min((at_once / product.units().div_ceil(ROW_UNITS)).max(1))
    }

    /// Blocks of one row: two units of outputs, or in products down one of the shared expert.
    fn plan_of_row(&self) -> Option<Plan> {
        let sums = ROW_UNITS * SLICES * SUMS_STRIDE * 4;
        let of = |weights: usize, row_bytes: usize, blocks: usize| {
            let [rows_at, sums_at] = [weights, weights + row_bytes].map(narrow);
            RowBlocks { rows_at, sums_at, shared_bytes: weights + row_bytes + sums, blocks }
        };
        let [shared, routed] = [&self.shared_up, &self.up].map(|product| product.units().div_ceil(ROW_UNITS));
        let up = of(
            ROW_UNITS * self.up.unit_bytes(),
            self.up.row_bytes(),
            shared + routed * self.tiles_at_once(&self.up, shared),
        );
        let (shared, routed) = (self.shared_down.units(), self.down.units().div_ceil(ROW_UNITS));
        let down = of(
            (ROW_UNITS * self.down.unit_bytes()).max(self.shared_down.unit_bytes()),
            self.down.row_bytes().max(self.shared_down.row_bytes()),
            shared + routed * self.tiles_at_once(&self.down, shared),
        );
        let most = self.calls[UP].facts.shared_bytes as usize;
        let fits = up.shared_bytes.max(down.shared_bytes) + ROW_SHARED <= most;
        fits.then_some(Plan::Row { up, down })
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

    /// Blocks that share units of the shared expert and of chosen ones: no more than run at once.
    fn block_count(&self, blocks: &Blocks, [shared, routed]: [usize; 2]) -> usize {
        let items = self.tokens.div_ceil(self.tile_rows) * shared + self.most_tiles() * routed;
        blocks.at_once.min(items.div_ceil(blocks.threads / (32 * SLICES)))
    }
}

impl Blocks {
    fn launch(&self, launch: Launch, blocks: usize) -> Launch {
        let launch = launch.grid([narrow(blocks), 1, 1]).block(narrow(self.threads));
        launch.shared(narrow(self.shared_bytes))
    }
}

impl RowBlocks {
    fn launch(&self, launch: Launch) -> Launch {
        let launch = launch.grid([narrow(self.blocks), 1, 1]).block(ROW_THREADS);
        launch.shared(narrow(self.shared_bytes))
    }
}
