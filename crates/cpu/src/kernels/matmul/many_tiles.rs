//! Many rows of activations times bf16 weights in tile registers (AMX).
//!
//! As in `many_codes.rs`, panels are taken in pairs and columns in blocks that stay in L1, with 32 rows at a time.
//! Rows that do not fill a tile are summed with vector instructions in the order of the tiles.
#![allow(unsafe_code)]

use std::ops::Range;

use super::bf16::{GROUP, VECTOR};
use super::format::PANEL_ROWS;
use super::multiply::Unpack;
use super::pair_sums::{PairRow, Sums, TILE_PAIRS, TwoParts};
use super::task::{Task, TaskRows};
use super::tiles::{TILE_ROWS, Tiles};
use crate::isa::Vectorized;
use crate::kernels::each_row::each_row;
use crate::simd::Simd;

/// Tiles of a column block: those of two panels and of a few rows fit in L1 together.
const COLUMN_BLOCK_TILES: usize = 16;
/// Rows that are multiplied together.
pub(super) const ROWS: usize = 2 * TILE_ROWS;
/// Panels that are multiplied together.
const PAIR: usize = 2;
/// Groups of columns in a tile.
const TILE_GROUPS: usize = 2 * TILE_PAIRS / GROUP;
/// Bytes of the unpacked column block.
pub(super) const UNPACKED_BYTES: usize = PAIR * COLUMN_BLOCK_TILES * TILE_PAIRS * VECTOR;

/// Panels times many rows.
pub(super) struct ManyTiles<'a> {
    pub task: &'a Task<'a>,
    pub panels: Range<usize>,
    pub unpack: Unpack<'a>,
    /// Scratch for sums and for an unpacked column block.
    pub floats: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl Vectorized for ManyTiles<'_> {
    type Output = ();
    type Home = Self;

    #[inline(always)]
    fn run<S: Simd>(self) {
        if !S::HAS_TILES {
            unreachable!("only the AMX instruction set has tile registers");
        }
        let ManyTiles { task, panels, unpack, floats, bytes: buffer } = self;
        let (rows, groups) = (task.rows.len(), task.weight.cols().div_ceil(GROUP));
        let sums: &mut [[f32; PANEL_ROWS]] = floats.as_chunks_mut().0;
        let sums = &mut sums[..panels.len() * rows];
        sums.fill([0.0; PANEL_ROWS]);
        // SAFETY: only reached with the instruction set that has tile registers.
        let tiles = unsafe { Tiles::set_up() };
        for first in (0..groups).step_by(COLUMN_BLOCK_TILES * TILE_GROUPS) {
            let block = first..groups.min(first + COLUMN_BLOCK_TILES * TILE_GROUPS);
            let columns = GROUP / 2 * block.start..GROUP / 2 * block.end;
            for (pair, sums) in sums.chunks_mut(PAIR * rows).enumerate() {
                let own_panels = sums.len() / rows;
                let bytes = columns.len() * VECTOR;
                for (p, out) in buffer[..own_panels * bytes].chunks_mut(bytes).enumerate() {
                    unpack(panels.start + pair * PAIR + p, block.clone(), out);
                }
                let (a, b) = buffer[..own_panels * bytes].split_at(bytes);
                let (a, b) = (a.as_chunks().0, b.as_chunks().0);
                let mut i = if own_panels == PAIR { fill(&tiles, task, [a, b], &columns, sums) } else { 0 };
                while i < rows {
                    let x = |r: usize| TwoParts::of(&task.x, task.rows.at(i + r).0).part(columns.clone());
                    i += match (rows - i, own_panels) {
                        (2.., 2) => group::<S, 2, 2>([a, b], [x(0), x(1)], sums, (rows, i)),
                        (_, 2) => group::<S, 1, 2>([a, b], [x(0)], sums, (rows, i)),
                        (4.., _) => group::<S, 4, 1>([a], [x(0), x(1), x(2), x(3)], sums, (rows, i)),
                        _ => group::<S, 1, 1>([a], [x(0)], sums, (rows, i)),
                    };
                }
            }
        }
        task.store_all::<S>(panels, sums);
    }
}

/// Adds a column block's products of two panels with as many rows as fill whole tiles, and returns how many: none if
/// rows are not contiguous or the column block is not whole tiles.
fn fill(
    tiles: &Tiles,
    task: &Task,
    panels: [&[[u8; VECTOR]]; PAIR],
    columns: &Range<usize>,
    sums: &mut [[f32; PANEL_ROWS]],
) -> usize {
    let TaskRows::Range(range) = &task.rows else { return 0 };
    if !columns.len().is_multiple_of(TILE_PAIRS) {
        return 0;
    }
    let (first, second) = sums.split_at_mut(range.len());
    let blocks = first.as_chunks_mut::<ROWS>().0.iter_mut().zip(second.as_chunks_mut::<ROWS>().0);
    let mut taken = 0;
    for (first, second) in blocks {
        let row = range.start + taken;
        let x = TwoParts::of(&task.x, row).part(columns.clone());
        let last = TwoParts::of(&task.x, row + ROWS - 1).part(columns.clone());
        assert_eq!(last.upper.len(), panels[0].len(), "rows and panels have the same columns");
        // SAFETY: the first and the last of the rows have these columns, as just checked.
        unsafe { tiles.multiply(x, task.x.stride_bytes(), panels, [first, second]) };
        taken += ROWS;
    }
    taken
}

/// Adds a column block's products of `N` panels and `R` rows to their sums, which start at `first`; those of the next
/// panel follow `rows` later. Returns `R`.
#[inline(always)]
fn group<S: Simd, const R: usize, const N: usize>(
    vectors: [&[[u8; VECTOR]]; N],
    x: [TwoParts; R],
    sums: &mut [[f32; PANEL_ROWS]],
    (rows, first): (usize, usize),
) -> usize {
    let count = vectors[0].len();
    assert!(vectors.iter().all(|v| v.len() == count) && x.iter().all(|x| x.pairs() == count));
    let mut own = [Sums::<S, R>::zero(); N];
    each_row!(N, p, {
        each_row!(R, r, {
            own[p].total[r] = S::load(&sums[p * rows + first + r]);
        });
    });
    for k in 0..count {
        each_row!(N, p, {
            // SAFETY: all panels have `count` vectors and all rows `count` pairs.
            unsafe { own[p].add(S::load_bytes(vectors[p].get_unchecked(k)), &x, k) };
            if (k + 1) % TILE_PAIRS == 0 || k + 1 == count {
                own[p].end_tile::<TwoParts>();
            }
        });
    }
    each_row!(N, p, {
        each_row!(R, r, {
            S::store(own[p].total[r], &mut sums[p * rows + first + r]);
        });
    });
    R
}
