//! Sums of products with bf16 weights, which are stored in pairs of columns.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;

/// Pairs of columns in a row of a tile register.
pub(super) const TILE_PAIRS: usize = 16;

/// An activation row, read in pairs of columns.
pub(crate) trait PairRow: Copy {
    /// Whether sums follow the order of tile registers: the even and the odd columns of a tile are summed separately
    /// from zero, and their sum is added to the total; first for the activations' upper parts, then for the lower
    /// ones. Otherwise columns are summed one by one.
    const TILED: bool;

    /// Number of complete pairs of columns.
    fn pairs(self) -> usize;

    /// The upper parts of two columns, then the lower parts if values are split.
    ///
    /// # Safety
    /// The row has pair `k`.
    unsafe fn pair<S: Simd>(self, k: usize) -> ([S::F; 2], [S::F; 2]);
}

/// Plain floats.
impl PairRow for &[f32] {
    const TILED: bool = false;

    #[inline(always)]
    fn pairs(self) -> usize {
        self.len() / 2
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(self, k: usize) -> ([S::F; 2], [S::F; 2]) {
        // SAFETY: guaranteed by the caller.
        let (even, odd) = unsafe { (*self.get_unchecked(2 * k), *self.get_unchecked(2 * k + 1)) };
        ([S::splat(even), S::splat(odd)], [S::zero(); 2])
    }
}

/// Floats split into two bf16 each, in pairs of columns.
#[derive(Clone, Copy)]
pub(crate) struct TwoParts<'a> {
    pub upper: &'a [i32],
    pub lower: &'a [i32],
}

impl<'a> TwoParts<'a> {
    #[inline(always)]
    pub fn of(x: &View<'a>, row: usize) -> TwoParts<'a> {
        let [upper, lower] = x.parts_row(row);
        TwoParts { upper, lower }
    }

    /// A range of the pairs.
    #[inline(always)]
    pub fn part(self, pairs: Range<usize>) -> TwoParts<'a> {
        TwoParts { upper: &self.upper[pairs.clone()], lower: &self.lower[pairs] }
    }
}

impl PairRow for TwoParts<'_> {
    const TILED: bool = true;

    #[inline(always)]
    fn pairs(self) -> usize {
        self.upper.len().min(self.lower.len())
    }

    #[inline(always)]
    unsafe fn pair<S: Simd>(self, k: usize) -> ([S::F; 2], [S::F; 2]) {
        // SAFETY: guaranteed by the caller.
        let (upper, lower) = unsafe { (*self.upper.get_unchecked(k), *self.lower.get_unchecked(k)) };
        (widen::<S>(upper), widen::<S>(lower))
    }
}

#[inline(always)]
fn widen<S: Simd>(pair: i32) -> [S::F; 2] {
    let pair = S::isplat(pair);
    [S::from_bits(S::ishl::<16>(pair)), S::from_bits(S::iand(pair, S::isplat(-65536)))]
}

/// The sums of a panel with `R` rows.
#[derive(Clone, Copy)]
pub(super) struct Sums<S: Simd, const R: usize> {
    pub total: [S::F; R],
    /// Even and odd columns of the current tile.
    upper: [[S::F; 2]; R],
    lower: [[S::F; 2]; R],
}

impl<S: Simd, const R: usize> Sums<S, R> {
    #[inline(always)]
    pub fn zero() -> Self {
        Sums { total: [S::zero(); R], upper: [[S::zero(); 2]; R], lower: [[S::zero(); 2]; R] }
    }

    /// Adds the products of two columns.
    ///
    /// # Safety
    /// Every row has pair `k`.
    #[inline(always)]
    pub unsafe fn add<X: PairRow>(&mut self, pair: S::B, x: &[X; R], k: usize) {
        let (even, odd) = S::widen_pairs(pair);
        each_row!(R, r, {
            // SAFETY: guaranteed by the caller.
            let (upper, lower) = unsafe { x[r].pair::<S>(k) };
            if X::TILED {
                let sums = (&mut self.upper[r], &mut self.lower[r]);
                *sums.0 = [S::fma(even, upper[0], sums.0[0]), S::fma(odd, upper[1], sums.0[1])];
                *sums.1 = [S::fma(even, lower[0], sums.1[0]), S::fma(odd, lower[1], sums.1[1])];
            } else {
                self.total[r] = S::fma(odd, upper[1], S::fma(even, upper[0], self.total[r]));
            }
        });
    }

    /// Adds the sums of a finished tile to the totals.
    #[inline(always)]
    pub fn end_tile<X: PairRow>(&mut self) {
        if X::TILED {
            each_row!(R, r, {
                for part in [&mut self.upper[r], &mut self.lower[r]] {
                    self.total[r] = S::add(self.total[r], S::add(part[0], part[1]));
                    *part = [S::zero(); 2];
                }
            });
        }
    }
}
