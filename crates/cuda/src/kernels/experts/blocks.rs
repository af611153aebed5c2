//! How the blocks of products share a layer's weights: what they hold in shared memory and how many there are.

use super::kernels::{MOST_STAGES, ROW_THREADS, ROW_UNITS, Streams};
use super::layer::{Layer, Product};
use super::pattern::UP;
use crate::kernels::binding::narrow;
use crate::kernels::matmul::{SLICES, SUMS_STRIDE, Tiles};
use crate::launch::Launch;

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

/// How the blocks of products stream weights.
pub(super) struct Blocks {
    pub(super) streams: Streams,
    /// Shared memory of a block.
    pub(super) shared_bytes: usize,
    pub(super) threads: usize,
    /// Blocks that run at once.
    pub(super) at_once: usize,
}

/// The blocks of products of one row.
pub(super) struct RowBlocks {
    /// Where the row and sums start in shared memory.
    pub(super) rows_at: u32,
    pub(super) sums_at: u32,
    /// Shared memory of a block.
    pub(super) shared_bytes: usize,
    pub(super) blocks: usize,
}

/// How products run.
pub(super) enum Plan {
    /// By kernels of one row.
    Row { up: RowBlocks, down: RowBlocks },
    /// By those of several.
    Rows { up: Blocks, down: Blocks },
}

impl Layer<'_> {
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

    pub(super) fn plan(&self) -> Option<Plan> {
        if self.tokens == 1 {
            return self.plan_of_row();
        }
        let up = self.of_rows(&self.up, &self.shared_up)?;
        Some(Plan::Rows { up, down: self.of_rows(&self.down, &self.shared_down)? })
    }

    /// Of one row so many tiles have blocks of their own that all blocks run at once, beside `others`: a block asks for its
    /// next weights before it is done with those that it has.
    pub(super) fn tiles_at_once(&self, product: &Product, others: usize) -> usize {
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

    /// Blocks that share units of the shared expert and of chosen ones: no more than run at once.
    pub(super) fn block_count(&self, blocks: &Blocks, [shared, routed]: [usize; 2]) -> usize {
        let items = self.tokens.div_ceil(self.tile_rows) * shared + self.most_tiles() * routed;
        blocks.at_once.min(items.div_ceil(blocks.threads / (32 * SLICES)))
    }
}

impl Blocks {
    pub(super) fn launch(&self, launch: Launch, blocks: usize) -> Launch {
        let launch = launch.grid([narrow(blocks), 1, 1]).block(narrow(self.threads));
        launch.shared(narrow(self.shared_bytes))
    }
}

impl RowBlocks {
    pub(super) fn launch(&self, launch: Launch) -> Launch {
        let launch = launch.grid([narrow(self.blocks), 1, 1]).block(ROW_THREADS);
        launch.shared(narrow(self.shared_bytes))
    }
}
