//! The launches of a product: which kernel multiplies so many rows with weights of a form, and with which sizes.

use mambo_kernel::{BackendError, Epilogue, OpKind};

use super::form::{Form, Held, TILE_COLS, TILE_ROWS, Tiles};
use super::kernels::{
    MatmulParams, MatmulPlainParams, PLAIN_FEW, PLAIN_MANY, PLAIN_TILE_SHARED, PLAIN_TILE_SIDE,
    PLAIN_TILE_THREADS, SLICES, SUMS_STRIDE, SomeBlock, few_kernel, many_kernel, many_rows, plain_kernel,
    plain_tile_kernel, some_kernel, stages, tiled_kernel, unit_blocks, unit_kernel,
};
use super::packed::Packed;
use crate::arch::Arch;
use crate::kernels::binding::{Binding, DeviceFacts, narrow};
use crate::kernels::slot::most_shared_bytes;
use crate::launch::Launch;
use crate::params::{Ptr, View};
use crate::source::Specialisation;

/// Rows that the kernel of few rows multiplies at a time.
const FEW_ROWS: usize = 8;
const FEW_GROUP_THREADS: usize = 128;
/// Stages of a warp's ring of weights, and the fewest that keep it busy.
const FEW_STAGES: usize = 16;
const FEW_LEAST_STAGES: usize = 2;
/// How often blocks of one unit may follow each other, each of which brings all rows, and how much more its weights have
/// to be than its rows where more of them do.
const UNIT_WAVES: usize = 2;
const UNIT_ROWS_SHARE: usize = 4;
/// Shared memory of a block of few rows beside its rings, rows and sums.
const FEW_SHARED: usize = 12 << 10;
/// Pairs of token and expert, and experts, that a block of few rows sorts by itself.
const FEW_PAIRS: usize = 512;
const FEW_EXPERTS: usize = 512;
/// Rows of an expert on average from which the kernel of many rows is faster.
const FEW_AVERAGE: usize = 4;
/// Rows that the kernel of some rows multiplies at a time, and the most that it is faster for.
const SOME_ROWS: [usize; 2] = [16, 32];
const SOME_MOST: usize = 64;
/// The fewest stages of its rings, and shared memory of its blocks beside stages and rings.
const SOME_LEAST_STAGES: usize = 2;
const SOME_SHARED: usize = 3 << 10;
/// Rows of a tile of many where there are no warpgroup products.
const TILED_ROWS: [usize; 2] = [32, 64];
const PLAIN_WARPS: usize = 8;
/// Rows from which tiles of f32 weights keep most multiprocessors busy.
const PLAIN_TILE_ROWS: usize = 256;

/// Rows that a tile can have where there are no warpgroup products.
fn tiled_rows(tiles: Tiles) -> &'static [usize] {
    &TILED_ROWS[..TILED_ROWS.len() / tiles.parts]
}

/// The kernels of all numbers of rows.
pub(super) fn sizes(op: OpKind, held: Held, arch: Arch) -> Vec<Specialisation> {
    let Form::Tiles(tiles) = held.form else { return Vec::new() };
    let has_experts = op == OpKind::MoeMatmul;
    let blocks = [SomeBlock::narrow(tiles), SomeBlock::WIDE];
    let some = SOME_ROWS.into_iter().filter(|_| !has_experts);
    let some = some.flat_map(|rows| blocks.map(|block| some_kernel(tiles, rows, block)));
    let available = most_shared_bytes(arch) as usize;
    let many = many_rows(tiles).iter();
    let many = many.map(|rows| many_kernel(tiles, has_experts, *rows, stages(tiles, *rows, available)));
    let tiled = tiled_rows(tiles).iter().map(|rows| tiled_kernel(tiles, has_experts, *rows));
    match arch.is_hopper() {
        true => some.chain(many).collect(),
        false => some.chain(tiled).collect(),
    }
}

/// Shared memory of a block of few rows: rows of a tile, and stages of every warp's ring.
struct FewSizes {
    tile_rows: usize,
    ring_stages: usize,
    shared_bytes: usize,
}

/// Sizes for so many rows of so many columns: half of what a multiprocessor has, so that the next kernel can begin
/// beside this one, or all of it where that leaves too little for weights.
fn few_sizes(tiles: Tiles, rows: usize, cols: usize, available: usize) -> FewSizes {
    let warps = tiles.groups() * SLICES;
    let stage = warps * tiles.chunk() * tiles.tile_bytes();
    // Two sets of sums, so that a group can go on while the last item is being stored.
    let row_bytes = tiles.parts * 2 * cols.next_multiple_of(TILE_COLS) + 16 + 2 * warps * SUMS_STRIDE * 4;
    let fit = |tile_rows: usize, room: usize| {
        let stages = room.saturating_sub(FEW_SHARED + tile_rows * row_bytes) / stage;
        (stages >= FEW_LEAST_STAGES).then(|| {
            let ring_stages = stages.min(FEW_STAGES);
            FewSizes { tile_rows, ring_stages, shared_bytes: tile_rows * row_bytes + ring_stages * stage }
        })
    };
    let tile_rows = rows.next_power_of_two().min(FEW_ROWS);
    let halves = std::iter::successors(Some(tile_rows), |rows| (*rows > 1).then_some(rows / 2));
    fit(tile_rows, available / 2)
        .or_else(|| halves.into_iter().find_map(|tile_rows| fit(tile_rows, available)))
        .unwrap_or_else(|| panic!("a row of {cols} columns has no room in shared memory"))
}

/// Shared memory of a block of one unit: for its slices of weights, and for each row with its sums.
fn unit_shared_bytes(tiles: Tiles, cols: usize) -> (usize, usize) {
    let slice_tiles = cols.div_ceil(TILE_COLS).div_ceil(SLICES);
    let row_bytes = tiles.parts * 2 * cols.next_multiple_of(TILE_COLS) + 16 + SLICES * SUMS_STRIDE * 4;
    (SLICES * slice_tiles * tiles.tile_bytes(), row_bytes)
}

/// A call whose weight is held in some form.
pub(in crate::kernels) struct Product<'b> {
    pub binding: &'b Binding<'b>,
    pub packed: &'b Packed,
    pub epilogue: Epilogue,
    /// Experts of every token, where rows have experts.
    pub ids: Option<View>,
}

impl Product<'_> {
    /// The launches for the binding's bucket of rows.
    pub fn launches(&self) -> Result<Vec<Launch>, BackendError> {
        Ok(match self.packed.form {
            Form::Rows => vec![self.plain()],
            Form::Tiles(tiles) => match self.many_rows(tiles) {
                Some(rows) => self.many(tiles, rows)?,
                None if self.ids.is_none() && self.rows() > FEW_ROWS => vec![self.some(tiles)],
                None => self.unit(tiles).map_or_else(|| self.few(tiles), |launch| vec![launch]),
            },
        })
    }

    pub(super) fn facts(&self) -> DeviceFacts {
        self.binding.facts
    }

    pub(super) fn rows(&self) -> usize {
        self.binding.rows() as usize
    }

    fn epilogue(&self) -> u32 {
        match self.epilogue {
            Epilogue::None => 0,
            Epilogue::Relu2 => 1,
            Epilogue::Residual => 2,
            Epilogue::Glu(_) => unreachable!("rows of products accept no gates"),
        }
    }

    fn residual(&self) -> View {
        match self.epilogue {
            Epilogue::Residual => self.binding.input(1),
            _ => View::NONE,
        }
    }

    /// Rows of a tile for a kernel of many rows; none where those of fewer rows are faster.
    pub(super) fn many_rows(&self, tiles: Tiles) -> Option<usize> {
        let sizes = if self.facts().arch.is_hopper() { many_rows(tiles) } else { tiled_rows(tiles) };
        let wanted = match self.ids {
            None if self.rows() <= SOME_ROWS[0] => return None,
            // With few outputs, slices of the columns beside each other keep more multiprocessors busy.
            None if self.rows() <= SOME_MOST && self.has_few_outputs() => return None,
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
        let largest = sizes[sizes.len() - 1];
        Some(sizes.iter().copied().find(|rows| *rows >= wanted).unwrap_or(largest))
    }

    /// Whether there are fewer units of outputs than blocks that could take one each.
    fn has_few_outputs(&self) -> bool {
        self.packed.dims()[1].div_ceil(TILE_ROWS) <= 2 * self.facts().processors as usize
    }

    pub(super) fn params(&self) -> MatmulParams {
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
            ring_stages: 0,
            slice_tiles: 0,
        }
    }

    /// A block for every unit of outputs, where few of them wait for others to end or rows cost little beside weights.
    fn unit(&self, tiles: Tiles) -> Option<Launch> {
        if self.ids.is_some() {
            return None;
        }
        let facts = self.facts();
        let mut params = self.params();
        let tile_rows = self.rows().next_power_of_two();
        let (weight_bytes, row_bytes) = unit_shared_bytes(tiles, self.packed.dims()[2]);
        let shared = weight_bytes + tile_rows * row_bytes;
        // A block takes a kilobyte more than it asks for.
        let fitting = (facts.shared_bytes as usize + 1024) / (shared + 1024);
        let at_once = facts.processors as usize * fitting.min(unit_blocks(tiles));
        let is_row_cheap = UNIT_ROWS_SHARE * tile_rows * row_bytes <= weight_bytes;
        if at_once == 0 || (params.units as usize > UNIT_WAVES * at_once && !is_row_cheap) {
            return None;
        }
        params.tile_rows = narrow(tile_rows);
        params.slice_tiles = params.col_tiles.div_ceil(SLICES as u32);
        let launch = Launch::new(unit_kernel(tiles), &params).grid([params.units, 1, 1]);
        Some(launch.block(narrow(FEW_GROUP_THREADS)).shared(narrow(shared)))
    }

    fn few(&self, tiles: Tiles) -> Vec<Launch> {
        let [experts, _, cols] = self.packed.dims();
        let facts = self.facts();
        // With experts, the most rows that one of them can have.
        let most_rows = if self.ids.is_some() {
            self.rows() / self.binding.output(0).times as usize
        } else {
            self.rows()
        };
        let sizes = few_sizes(tiles, most_rows, cols, facts.shared_bytes as usize);
        let mut params = self.params();
        params.tile_rows = narrow(sizes.tile_rows);
        params.ring_stages = narrow(sizes.ring_stages);
        let mut launches = Vec::new();
        let is_sorted_before = self.ids.is_some() && (self.rows() > FEW_PAIRS || experts > FEW_EXPERTS);
        if is_sorted_before {
            launches.push(self.sort(&mut params, sizes.tile_rows));
        }
        let threads = narrow(tiles.groups() * FEW_GROUP_THREADS);
        let launch = Launch::new(few_kernel(tiles, self.ids.is_some()), &params);
        launches
            .push(launch.grid([facts.processors, 1, 1]).block(threads).shared(narrow(sizes.shared_bytes)));
        launches
    }

    fn some(&self, tiles: Tiles) -> Launch {
        let facts = self.facts();
        let mut params = self.params();
        let rows = SOME_ROWS.into_iter().find(|rows| *rows >= self.rows()).unwrap_or(SOME_ROWS[1]);
        let available = facts.shared_bytes as usize;
        let sized = |block: SomeBlock| {
            let stage = block.groups * SLICES * tiles.chunk() * tiles.tile_bytes();
            let x_bytes = block.x_stages * tiles.parts * SLICES * rows * 2 * TILE_COLS;
            let stages = |room: usize| (room.saturating_sub(SOME_SHARED + x_bytes) / stage).min(FEW_STAGES);
            // Two blocks a multiprocessor where that leaves enough for weights.
            let halved = Some(stages(available / 2)).filter(|stages| *stages >= SOME_LEAST_STAGES);
            let stages = halved.unwrap_or_else(|| stages(available));
            (block, stages, x_bytes + stages * stage)
        };
        let narrow_block = Some(sized(SomeBlock::narrow(tiles))).filter(|_| self.has_few_outputs());
        let narrow_block = narrow_block.filter(|(_, stages, _)| *stages >= SOME_LEAST_STAGES);
        let (block, stages, shared) = narrow_block.unwrap_or_else(|| sized(SomeBlock::WIDE));
        params.ring_stages = narrow(stages);
        let grid = [params.units.div_ceil(block.groups as u32), narrow(self.rows().div_ceil(rows)), 1];
        let threads = narrow(block.groups * FEW_GROUP_THREADS);
        let kernel = some_kernel(tiles, rows, block);
        Launch::new(kernel, &params).grid(grid).block(threads).shared(narrow(shared))
    }

    /// Whether there are rows enough for tiles of f32 weights, and these can be copied 16 bytes at a time.
    fn fills_plain_tiles(&self, params: &MatmulPlainParams) -> bool {
        let is_aligned = params.x.cols.is_multiple_of(4) && params.x.stride.is_multiple_of(16);
        let fits = PLAIN_TILE_SHARED <= self.facts().shared_bytes as usize;
        self.ids.is_none() && self.rows() >= PLAIN_TILE_ROWS && is_aligned && fits
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
        if self.fills_plain_tiles(&params) {
            let tiles = |n: usize| narrow(n.div_ceil(PLAIN_TILE_SIDE));
            return Launch::new(plain_tile_kernel(), &params)
                .grid([tiles(params.out.cols as usize), tiles(self.rows()), 1])
                .block(narrow(PLAIN_TILE_THREADS))
                .shared(narrow(PLAIN_TILE_SHARED));
        }
        let is_few = self.ids.is_some() || self.rows() <= 2;
        let sizes = if is_few { PLAIN_FEW } else { PLAIN_MANY };
        let blocks = (params.out.cols as usize).div_ceil(PLAIN_WARPS * sizes.outputs);
        let grid = [narrow(blocks), narrow(self.rows().div_ceil(sizes.rows)), 1];
        let kernel = plain_kernel(self.ids.is_some(), sizes);
        Launch::new(kernel, &params).grid(grid).block(narrow(32 * PLAIN_WARPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::matmul::form::{OWN_TYPES, held};

    #[test]
    fn blocks_of_few_rows_fit() {
        for dtype in OWN_TYPES {
            let Some(Form::Tiles(tiles)) = held(dtype).map(|held| held.form) else { continue };
            for (available, cols) in
                [(99 << 10, 2688), (163 << 10, 4096), (227 << 10, 2688), (227 << 10, 28672)]
            {
                for rows in [1, 2, 5, 8, 40] {
                    let sizes = few_sizes(tiles, rows, cols, available);
                    assert!(sizes.shared_bytes + FEW_SHARED <= available, "{dtype} {rows} x {cols}");
                    assert!(sizes.tile_rows <= FEW_ROWS && sizes.ring_stages >= FEW_LEAST_STAGES);
                }
            }
        }
    }
}
