//! What a layer of experts consists of, and whether its kernels can run it.

use mambo_kernel::{BackendError, Op, RouteDims};

use super::kernels::{ExpertWeights, MOST_PAIRS, ROUTER_OUTPUTS, ROWS};
use super::pattern::{DOWN, NORM, ROUTE, ROUTER, SHARED_DOWN, SHARED_UP, UP};
use crate::kernels::binding::{Binding, narrow};
use crate::kernels::matmul::{Form, Packed, TILE_COLS, TILE_ROWS, Tiles};
use crate::kernels::round::{HELD, row_threads};

/// The most tokens of a step that runs so: beyond them the kernels of many rows are better.
const MOST_TOKENS: usize = 64;
/// The most experts that a block has room to choose among.
const MOST_EXPERTS: usize = 256;

/// What one product multiplies with.
pub(super) struct Product<'a> {
    pub(super) packed: &'a Packed,
    pub(super) tiles: Tiles,
}

impl<'a> Product<'a> {
    pub(super) fn of(
        binding: &'a Binding,
        experts: usize,
        out: usize,
    ) -> Result<Option<Product<'a>>, BackendError> {
        let packed = binding.packed(0, [experts, out, binding.call.inputs[0].cols])?;
        Ok(match packed.form {
            Form::Tiles(tiles) if tiles.parts == 1 => Some(Product { packed, tiles }),
            _ => None,
        })
    }

    pub(super) fn out(&self) -> usize {
        self.packed.dims()[1]
    }

    pub(super) fn units(&self) -> usize {
        self.out().div_ceil(TILE_ROWS)
    }

    pub(super) fn col_tiles(&self) -> usize {
        self.packed.dims()[2].div_ceil(TILE_COLS)
    }

    pub(super) fn weights(&self) -> ExpertWeights {
        let (tiles, factors) = (self.packed.values.ptr(), self.packed.factors.ptr());
        ExpertWeights { tiles, factors, col_tiles: narrow(self.col_tiles()), units: narrow(self.units()) }
    }

    /// Bytes of a unit's weights.
    pub(super) fn unit_bytes(&self) -> usize {
        self.col_tiles() * self.tiles.tile_bytes()
    }

    /// Bytes of a row in shared memory.
    pub(super) fn row_bytes(&self) -> usize {
        self.col_tiles() * 2 * TILE_COLS + 16
    }
}

/// A layer that can run so.
pub(super) struct Layer<'a> {
    pub(super) calls: &'a [Binding<'a>],
    pub(super) route: RouteDims,
    pub(super) eps: f32,
    pub(super) router: &'a Packed,
    pub(super) up: Product<'a>,
    pub(super) down: Product<'a>,
    pub(super) shared_up: Product<'a>,
    pub(super) shared_down: Product<'a>,
    pub(super) tokens: usize,
    pub(super) tile_rows: usize,
    /// Bytes of a row of rounded values.
    pub(super) rounded_stride: usize,
}

impl<'a> Layer<'a> {
    pub(super) fn of(calls: &'a [Binding<'a>]) -> Result<Option<Layer<'a>>, BackendError> {
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

    pub(super) fn pairs(&self) -> usize {
        self.tokens * self.route.top_k
    }

    /// The most tiles of rows that experts can have.
    pub(super) fn most_tiles(&self) -> usize {
        self.pairs().min(self.route.experts + self.pairs() / self.tile_rows)
    }

    pub(super) fn cols(&self) -> usize {
        self.down.out()
    }
}
