//! The launches of a product of many rows: with experts rows are sorted, and on Hopper brought into their order, before.

use mambo_kernel::BackendError;

use super::form::{Form, TILE_COLS, Tiles};
use super::kernels::{
    MatmulManyParams, MatmulParams, MoeGatherParams, MoeSortParams, RowTile, gather_kernel, many_kernel,
    many_threads, sort_kernel, stage_bytes, stages, tiled_kernel,
};
use super::product::Product;
use crate::kernels::binding::narrow;
use crate::launch::Launch;
use crate::params::Ptr;
use crate::tensor_map::TensorMap;

const SORT_THREADS: u32 = 1024;
/// Rows that a block of the kernel copies that brings rows into order, each by a warp.
const GATHER_ROWS: u32 = 8;
/// Blocks of a kernel without warpgroup products, with a fixed number of stages.
const TILED_THREADS: u32 = 256;
const TILED_STAGES: usize = 4;

/// An experts' product of rows that stand in the order of their experts already.
pub(in crate::kernels) struct OfSortedRows {
    pub sort: Launch,
    /// The rows in their order, once they are sorted.
    pub order: Ptr<u32>,
    pub product: Launch,
}

impl Product<'_> {
    /// The launches for rows that whoever writes them brings into order; none where another kernel multiplies them.
    pub fn of_sorted_rows(&self) -> Result<Option<OfSortedRows>, BackendError> {
        let Form::Tiles(tiles) = self.packed.form else { return Ok(None) };
        let Some(rows) = self.many_rows(tiles).filter(|_| self.facts().arch.is_hopper()) else {
            return Ok(None);
        };
        let mut params = self.params();
        let sort = self.sort(&mut params, rows);
        Ok(Some(OfSortedRows { sort, order: params.order, product: self.many_boxes(tiles, rows, params)? }))
    }

    /// In tiles of so many rows.
    pub(super) fn many(&self, tiles: Tiles, rows: usize) -> Result<Vec<Launch>, BackendError> {
        let mut params = self.params();
        let mut launches = Vec::new();
        if self.ids.is_some() {
            launches.push(self.sort(&mut params, rows));
        }
        match self.facts().arch.is_hopper() {
            true => {
                if self.ids.is_some() {
                    launches.push(self.gather(&mut params));
                }
                launches.push(self.many_boxes(tiles, rows, params)?);
            }
            false => {
                let shared = TILED_STAGES * tiles.parts * rows * 2 * TILE_COLS;
                let launch = Launch::new(tiled_kernel(tiles, self.ids.is_some(), rows), &params);
                let launch = launch.grid([self.facts().processors, 1, 1]).block(TILED_THREADS);
                launches.push(launch.shared(narrow(shared)));
            }
        }
        Ok(launches)
    }

    /// The product with rows that the hardware copies as boxes.
    fn many_boxes(&self, tiles: Tiles, rows: usize, params: MatmulParams) -> Result<Launch, BackendError> {
        let cols = tiles.parts * params.col_tiles as usize * TILE_COLS;
        let map = TensorMap::of_rows(params.x.data, params.x.stride, self.binding.rows(), cols)?;
        let facts = self.facts();
        let stages = stages(tiles, rows, facts.shared_bytes as usize);
        let kernel = many_kernel(tiles, self.ids.is_some(), rows, stages);
        // Stages start on a multiple of 1024 bytes.
        let shared = stages * stage_bytes(tiles, rows) + 1024;
        let launch = Launch::new(kernel, &MatmulManyParams { rows: map, product: params });
        let launch = launch.grid([facts.processors, 1, 1]).block(narrow(many_threads(tiles)));
        Ok(launch.shared(narrow(shared)))
    }

    /// Brings the rows of activations into the order of their experts.
    fn gather(&self, params: &mut MatmulParams) -> Launch {
        let rows = self.binding.rows();
        let from = params.x;
        params.x.data = self.binding.scratch(rows as usize * from.stride as usize).cast();
        params.x.times = params.out.times;
        let gather = MoeGatherParams { step: params.step, from, to: params.x, order: params.order };
        let grid = [rows.div_ceil(GATHER_ROWS), 1, 1];
        Launch::new(gather_kernel(), &gather).grid(grid).block(32 * GATHER_ROWS)
    }

    /// Sorts rows by expert before a product of tiles of so many rows.
    pub(super) fn sort(&self, params: &mut MatmulParams, tile_rows: usize) -> Launch {
        let (rows, experts) = (self.rows(), self.packed.dims()[0]);
        let tiles = rows.div_ceil(tile_rows) + experts;
        params.row_tiles = self.binding.scratch(tiles * size_of::<RowTile>()).cast();
        params.row_tile_count = self.binding.scratch(size_of::<u32>()).cast();
        params.order = self.binding.scratch(rows * size_of::<u32>()).cast();
        let available = self.facts().shared_bytes as usize / size_of::<u32>();
        let room = if 2 * experts + rows <= available { rows } else { 0 };
        let sort = MoeSortParams {
            step: params.step,
            ids: params.ids,
            row_tiles: params.row_tiles,
            row_tile_count: params.row_tile_count,
            order: params.order,
            experts: params.experts,
            tile_rows: narrow(tile_rows),
            room: narrow(room),
            unused: 0,
        };
        let shared = (2 * experts + room) * size_of::<u32>();
        Launch::new(sort_kernel(), &sort).block(SORT_THREADS).shared(narrow(shared))
    }
}
