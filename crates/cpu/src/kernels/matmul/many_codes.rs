//! Many rows of 8-bit activations times codes that are unpacked once for all rows.
//!
//! Panels are taken in pairs and columns in blocks: the column block of a pair is unpacked into L1 and multiplied with
//! all rows, six or four at a time. Each broadcast of activations serves both panels. Between column blocks the sums
//! stay in L2. Per row, panel and tile of one scale: 8 dot steps and two fma.
#![allow(unsafe_code)]

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::coded::{Codes, Kind, TILE};
use super::format::PANEL_ROWS;
use super::multiply::Unpack;
use super::task::Task;
use crate::activation::Q8Block;
use crate::isa::Vectorized;
use crate::kernels::each_row::each_row;
use crate::simd::Simd;

/// Tiles of a column block: those of two panels and of a few rows fit in L1 together.
const COLUMN_BLOCK_TILES: usize = 16;
/// Panels that are multiplied together.
const PAIR: usize = 2;
/// Bytes of the unpacked column block.
pub(super) const UNPACKED_BYTES: usize = PAIR * COLUMN_BLOCK_TILES * size_of::<UnpackedTile>();

/// A tile of any kind of codes.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct UnpackedTile {
    /// By dot step, with the zero point that the instruction set prefers.
    pub codes: [[u8; 64]; 8],
    /// f32 lanes, as in [`super::coded::Tile`].
    pub scale: [u8; 64],
    pub other: [u8; 64],
}

impl UnpackedTile {
    /// Views memory as tiles.
    pub fn of(bytes: &mut [u8]) -> &mut [UnpackedTile] {
        bytemuck::cast_slice_mut(bytes)
    }
}

/// Panels times many rows.
pub(super) struct ManyCodes<'a> {
    pub task: &'a Task<'a>,
    pub panels: Range<usize>,
    pub kind: Kind,
    /// Whether codes use all eight bits.
    pub wide: bool,
    /// Activations in the codes' column order, where that differs from the stored order.
    pub transposed: Option<&'a [Q8Block]>,
    pub unpack: Unpack<'a>,
    /// Scratch for sums and for an unpacked column block.
    pub floats: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl Vectorized for ManyCodes<'_> {
    type Output = ();
    type Home = Self;

    #[inline(always)]
    fn run<S: Simd>(self) {
        match (self.kind, self.wide || S::CODE_ZERO == 128) {
            (Kind::Whole, false) => self.panels::<S, 0, false>(),
            (Kind::Whole, true) => self.panels::<S, 0, true>(),
            (Kind::Halves, false) => self.panels::<S, 1, false>(),
            (Kind::Halves, true) => self.panels::<S, 1, true>(),
            (Kind::Line, _) => self.panels::<S, 2, false>(),
        }
    }
}

/// The kinds by number, because const parameters cannot be enums.
const KINDS: [Kind; 3] = [Kind::Whole, Kind::Halves, Kind::Line];

impl ManyCodes<'_> {
    #[inline(always)]
    fn panels<S: Simd, const KIND: usize, const WIDE: bool>(self) {
        let ManyCodes { task, panels, unpack, transposed, floats, bytes: buffer, .. } = self;
        let (rows, tiles) = (task.rows.len(), task.weight.cols() / TILE);
        let row = |i: usize| match transposed {
            Some(blocks) => &blocks[i * tiles..(i + 1) * tiles],
            None => task.x.q8_row(task.rows.at(i).0),
        };
        let sums: &mut [[f32; PANEL_ROWS]] = floats.as_chunks_mut().0;
        let sums = &mut sums[..panels.len() * rows];
        sums.fill([0.0; PANEL_ROWS]);
        for first in (0..tiles).step_by(COLUMN_BLOCK_TILES) {
            let block = first..tiles.min(first + COLUMN_BLOCK_TILES);
            for (pair, sums) in sums.chunks_mut(PAIR * rows).enumerate() {
                let count = sums.len() / rows;
                let bytes = block.len() * size_of::<UnpackedTile>();
                for (p, out) in buffer[..count * bytes].chunks_mut(bytes).enumerate() {
                    unpack(panels.start + pair * PAIR + p, block.clone(), out);
                }
                let unpacked = UnpackedTile::of(&mut buffer[..count * bytes]);
                let (a, b) = unpacked.split_at(block.len());
                let mut i = 0;
                while i < rows {
                    let x = |r: usize| &row(i + r)[block.clone()];
                    i += match (rows - i, count) {
                        // Leaves as few single rows as possible. Half-tile scales would need twice the accumulators.
                        (6 | 7 | 10.., 2) if S::ROWS >= 8 && KINDS[KIND] != Kind::Halves => {
                            let six = [x(0), x(1), x(2), x(3), x(4), x(5)];
                            group::<S, KIND, WIDE, 6, 2>([a, b], six, sums, (rows, i))
                        }
                        (4.., 2) if S::ROWS >= 8 => {
                            group::<S, KIND, WIDE, 4, 2>([a, b], [x(0), x(1), x(2), x(3)], sums, (rows, i))
                        }
                        (4.., _) => {
                            let four = [x(0), x(1), x(2), x(3)];
                            group::<S, KIND, WIDE, 4, 1>([a], four, sums, (rows, i));
                            if count == 2 {
                                group::<S, KIND, WIDE, 4, 1>([b], four, sums, (rows, rows + i))
                            } else {
                                4
                            }
                        }
                        (_, 2) => group::<S, KIND, WIDE, 1, 2>([a, b], [x(0)], sums, (rows, i)),
                        _ => group::<S, KIND, WIDE, 1, 1>([a], [x(0)], sums, (rows, i)),
                    };
                }
            }
        }
        task.store_all::<S>(panels, sums);
    }
}

/// Adds a column block's products of `N` panels and `R` rows to their sums, which start at `first`; those of the next
/// panel follow `rows` later. Returns `R`.
#[inline(always)]
fn group<S: Simd, const KIND: usize, const WIDE: bool, const R: usize, const N: usize>(
    tiles: [&[UnpackedTile]; N],
    x: [&[Q8Block]; R],
    sums: &mut [[f32; PANEL_ROWS]],
    (rows, first): (usize, usize),
) -> usize {
    let zero = match KINDS[KIND] {
        Kind::Line => 0,
        _ if WIDE => 128,
        _ => S::CODE_ZERO,
    };
    let codes = Codes { kind: KINDS[KIND], zero };
    let count = tiles[0].len();
    assert!(tiles.iter().all(|t| t.len() == count) && x.iter().all(|x| x.len() == count));
    let mut acc = [[S::zero(); R]; N];
    each_row!(N, p, {
        each_row!(R, r, {
            acc[p][r] = S::load(&sums[p * rows + first + r]);
        });
    });
    for t in 0..count {
        // SAFETY: all have `count` tiles.
        let tile: [&UnpackedTile; N] = std::array::from_fn(|p| unsafe { tiles[p].get_unchecked(t) });
        // SAFETY: as above.
        let x: [&Q8Block; R] = std::array::from_fn(|r| unsafe { x[r].get_unchecked(t) });
        let mut low = [[S::isplat(0); R]; N];
        let mut high = [[S::isplat(0); R]; N];
        each_row!(R, r, {
            let starts = codes.starts::<S>(x[r]);
            each_row!(N, p, {
                [low[p][r], high[p][r]] = starts;
            });
        });
        add_steps::<S, WIDE, R, N>(0..4, tile, x, &mut low);
        let second_half = if codes.kind == Kind::Halves { &mut high } else { &mut low };
        add_steps::<S, WIDE, R, N>(4..8, tile, x, second_half);
        each_row!(N, p, {
            let (scale, other) = (S::load_le(&tile[p].scale), S::load_le(&tile[p].other));
            each_row!(R, r, {
                let inner = codes.inner::<S>([scale, other], [low[p][r], high[p][r]], x[r]);
                acc[p][r] = S::fma(S::splat(x[r].scale), inner, acc[p][r]);
            });
        });
    }
    each_row!(N, p, {
        each_row!(R, r, {
            S::store(acc[p][r], &mut sums[p * rows + first + r]);
        });
    });
    R
}

/// Adds some dot steps of a tile to the sums of `N` panels and `R` rows. All go to the same sums, which the compiler can
/// then keep in registers whether or not it unrolls the steps.
#[inline(always)]
fn add_steps<S: Simd, const WIDE: bool, const R: usize, const N: usize>(
    steps: Range<usize>,
    tile: [&UnpackedTile; N],
    x: [&Q8Block; R],
    sums: &mut [[S::I; R]; N],
) {
    for j in steps {
        let mut step = [S::bsplat(0); N];
        each_row!(N, p, {
            step[p] = S::load_bytes(&tile[p].codes[j]);
        });
        each_row!(R, r, {
            each_row!(N, p, {
                sums[p][r] = if WIDE {
                    S::dot_wide(sums[p][r], step[p], x[r].codes[j])
                } else {
                    S::dot(sums[p][r], step[p], x[r].codes[j])
                };
            });
        });
    }
}
