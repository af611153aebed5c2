//! Many rows of bf16 activations against weights that are unpacked once for all of them.
//!
//! As `many_codes.rs` does it: panels in pairs, columns in stretches that stay in the first cache, rows eight
//! at a time. Per row, panel and two columns: one dot step, or two fma where there is none.
#![allow(unsafe_code)]

use std::ops::Range;

use super::bf16::{GROUP, Row, VECTOR, step};
use super::format::{PANEL_ROWS, each_row};
use super::multiply::{Task, Unpack};
use crate::isa::Vectorized;
use crate::simd::Simd;

/// Groups of columns in a stretch: two panels' stretches and some rows' share the first cache.
const STRETCH: usize = 24;
/// Panels that are multiplied together.
const PAIR: usize = 2;
/// Bytes of a panel's unpacked group.
const GROUP_BYTES: usize = GROUP / 2 * VECTOR;
/// Bytes of the unpacked stretch.
pub(super) const STRETCH_BYTES: usize = PAIR * STRETCH * GROUP_BYTES;

/// Some panels against many rows.
pub(super) struct ManyPairs<'a> {
    pub task: &'a Task<'a>,
    pub panels: Range<usize>,
    /// Words prepared for each row.
    pub prepared: &'a [i32],
    pub unpack: Unpack<'a>,
    /// Room for sums and for an unpacked stretch.
    pub floats: &'a mut [f32],
    pub bytes: &'a mut [u8],
}

impl Vectorized for ManyPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        if S::has_pairs() { self.panels::<S, true>() } else { self.panels::<S, false>() }
    }
}

impl ManyPairs<'_> {
    #[inline(always)]
    fn panels<S: Simd, const NATIVE: bool>(self) {
        let ManyPairs { task, panels, prepared, unpack, floats, bytes: room } = self;
        let (rows, groups) = (task.rows.len(), task.weight.cols().div_ceil(GROUP));
        let words = prepared.len() / rows;
        let sums: &mut [[f32; PANEL_ROWS]] = floats.as_chunks_mut().0;
        let sums = &mut sums[..panels.len() * rows];
        sums.fill([0.0; PANEL_ROWS]);
        for first in (0..groups).step_by(STRETCH) {
            let stretch = first..groups.min(first + STRETCH);
            for (pair, sums) in sums.chunks_mut(PAIR * rows).enumerate() {
                let count = sums.len() / rows;
                let bytes = stretch.len() * GROUP_BYTES;
                for (p, out) in room[..count * bytes].chunks_mut(bytes).enumerate() {
                    unpack(panels.start + pair * PAIR + p, stretch.clone(), out);
                }
                let (a, b) = room[..count * bytes].split_at(bytes);
                let (a, b) = (a.as_chunks().0, b.as_chunks().0);
                let mut i = 0;
                while i < rows {
                    let x = |r: usize| {
                        let own = &prepared[(i + r) * words..(i + r + 1) * words];
                        Row::of(&task.x, task.rows.at(i + r).0, own).groups(stretch.clone())
                    };
                    i += match (rows - i, count) {
                        // As many sums as a dot step takes cycles to be done.
                        (8.., 2) if S::ROWS >= 8 => {
                            let eight = [x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)];
                            group::<S, NATIVE, 8, 2>([a, b], eight, sums, (rows, i))
                        }
                        (4.., 2) if S::ROWS >= 8 => {
                            group::<S, NATIVE, 4, 2>([a, b], [x(0), x(1), x(2), x(3)], sums, (rows, i))
                        }
                        (4.., _) => {
                            let four = [x(0), x(1), x(2), x(3)];
                            if count == 2 {
                                group::<S, NATIVE, 4, 1>([b], four, sums, (rows, rows + i));
                            }
                            group::<S, NATIVE, 4, 1>([a], four, sums, (rows, i))
                        }
                        (_, 2) => group::<S, NATIVE, 1, 2>([a, b], [x(0)], sums, (rows, i)),
                        _ => group::<S, NATIVE, 1, 1>([a], [x(0)], sums, (rows, i)),
                    };
                }
            }
        }
        task.store_all::<S>(panels, sums);
    }
}

/// Adds a stretch's products of `N` panels and `R` rows to their sums, the first of which is at `first`
/// and those of the next panel `rows` further on. Returns the rows it took.
#[inline(always)]
fn group<S: Simd, const NATIVE: bool, const R: usize, const N: usize>(
    vectors: [&[[u8; VECTOR]]; N],
    x: [Row; R],
    sums: &mut [[f32; PANEL_ROWS]],
    (rows, first): (usize, usize),
) -> usize {
    let count = vectors[0].len();
    assert!(vectors.iter().all(|v| v.len() == count));
    assert!(x.iter().all(|x| x.pairs.len() == count && (NATIVE || x.values.len() == 2 * count)));
    let mut acc = [[S::zero(); R]; N];
    each_row!(N, p, {
        each_row!(R, r, {
            acc[p][r] = S::load(&sums[p * rows + first + r]);
        });
    });
    for k in 0..count {
        each_row!(N, p, {
            // SAFETY: all panels and rows have `count` vectors and pairs.
            unsafe { step::<S, NATIVE, R>(&mut acc[p], S::load_bytes(vectors[p].get_unchecked(k)), &x, k) };
        });
    }
    each_row!(N, p, {
        each_row!(R, r, {
            S::store(acc[p][r], &mut sums[p * rows + first + r]);
        });
    });
    R
}
