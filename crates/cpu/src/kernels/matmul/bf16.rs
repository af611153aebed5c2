//! bf16 weights with f32 activations, which are split into two bf16 parts for tile registers.
//!
//! Weights are stored losslessly in twelve bits: sign and fraction as they are, and the exponent as its distance below
//! the row's top exponent. Weights whose exponent is out of reach are outliers: zero here, and added at the end
//! ([`super::outliers`]). Panel: the top exponents of its rows, then for every eight columns two planes of signs and
//! fractions and one of exponents, each lane holding two columns.
//!
//! Bytes: 1.5 per weight; FLOPs: 2 per weight and row.
#![allow(unsafe_code)]

use crate::activation::PAIR_LEAST;
use mambo_tensor::DType;

use super::format::{Format, Many, PANEL_ROWS, PanelSlice, fetch_ahead};
use super::outliers::Outlier;
use super::pair_sums::{PairRow, Sums, TILE_PAIRS, TwoParts};
use crate::isa::Fetch;
use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;

/// Bytes of a vector: two columns of a panel.
pub(super) const VECTOR: usize = 4 * PANEL_ROWS;
/// Columns that are packed into three vectors.
pub(super) const GROUP: usize = 8;
const GROUP_BYTES: usize = 3 * VECTOR;
/// Column pairs of a group, one vector each.
const PAIRS: usize = GROUP / 2;
/// Largest distance of an exponent below its row's top exponent; the next code stands for zero.
const REACH: u16 = 14;
/// Smallest exponent in a panel. As activations have no smaller one either, no sum of products is subnormal, which
/// tile registers would flush to zero and vector instructions would not.
const LEAST: u16 = (PAIR_LEAST.to_bits() >> 23) as u16;
/// A row in which more than one weight in this many is an outlier gets a top below its largest exponent.
const OUTLIER_LIMIT: usize = 64;

/// The format of bf16.
pub(crate) struct Bf16Format;

/// The same, multiplied with tile registers.
pub(crate) struct Bf16Tiles;

/// Signs and fractions from the lower bytes of a plane.
#[inline(always)]
fn low<S: Simd>(plane: S::B) -> S::B {
    S::bor(S::bshl::<15>(plane), S::band(S::bshr::<1>(plane), S::wsplat(0x7f)))
}

/// The same from the upper bytes.
#[inline(always)]
fn high<S: Simd>(plane: S::B) -> S::B {
    S::bor(S::band(S::bshl::<7>(plane), S::wsplat(0x8000)), S::bshr::<9>(plane))
}

/// The four column pairs of a group.
#[inline(always)]
fn pairs<S: Simd>(group: &[u8; GROUP_BYTES], top: S::B) -> [S::B; PAIRS] {
    let [first, second, exponents] = group.as_chunks::<VECTOR>().0 else { unreachable!("three vectors") };
    let [first, second, exponents] = [S::load_bytes(first), S::load_bytes(second), S::load_bytes(exponents)];
    [
        S::bor(low::<S>(first), S::lower_exponents(top, exponents)),
        S::bor(high::<S>(first), S::lower_exponents(top, S::bshr::<4>(exponents))),
        S::bor(low::<S>(second), S::lower_exponents(top, S::bshr::<8>(exponents))),
        S::bor(high::<S>(second), S::lower_exponents(top, S::bshr::<12>(exponents))),
    ]
}

/// The top exponents of a panel, and its groups.
#[inline(always)]
fn parts(panel: &[u8]) -> (&[u8; VECTOR], &[[u8; GROUP_BYTES]]) {
    let (top, groups) = panel.split_first_chunk().expect("a panel starts with its top exponents");
    (top, groups.as_chunks().0)
}

fn exponent(weight: u16) -> u16 {
    weight >> 7 & 0xff
}

/// Exponent code of a weight, and the byte of its sign and fraction.
fn code(weight: u16, top: u16) -> (u16, u16) {
    let byte = (weight & 0x7f) << 1 | weight >> 15;
    if is_in_reach(weight, top) { (top - exponent(weight), byte) } else { (REACH + 1, 0) }
}

fn is_in_reach(weight: u16, top: u16) -> bool {
    (top.saturating_sub(REACH).max(LEAST)..=top).contains(&exponent(weight))
}

/// Zeros of either sign are never outliers.
fn is_outlier(weight: u16, top: u16) -> bool {
    !is_in_reach(weight, top) && weight << 1 != 0
}

fn weights(row: &[u8]) -> impl Iterator<Item = u16> {
    row.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half))
}

/// The exponent from which a row's exponents are counted down: the largest, or if that leaves too many out of reach,
/// the one with the most weights in reach.
fn top_exponent(row: &[u8]) -> u16 {
    let largest = weights(row).map(exponent).max().unwrap_or(0);
    let outliers = weights(row).filter(|weight| is_outlier(*weight, largest)).count();
    if outliers * OUTLIER_LIMIT <= row.len() / 2 {
        return largest;
    }
    let mut counts = [0usize; 256];
    weights(row).for_each(|weight| counts[usize::from(exponent(weight))] += 1);
    let held = |top: &u16| -> usize {
        let from = top.saturating_sub(REACH).max(LEAST);
        (from..=*top).map(|e| counts[usize::from(e)]).sum()
    };
    (LEAST..=largest).max_by_key(held).unwrap_or(largest)
}

impl Format for Bf16Format {
    type Home = Self;
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;
    const MANY: Many = Many::Floats;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        VECTOR + cols.div_ceil(GROUP) * GROUP_BYTES
    }

    fn pack(_dtype: DType, panel: &mut [u8], _cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let (tops, groups) = panel.split_first_chunk_mut::<VECTOR>().expect("a whole panel");
        let both = |low: u16, high: u16| (u32::from(low) | u32::from(high) << 16).to_le_bytes();
        for (i, row) in rows.iter().enumerate() {
            let (lane, top) = (4 * (first_lane + i), top_exponent(row));
            tops[lane..lane + 4].copy_from_slice(&both(top << 7, top << 7));
            let stored = row.chunks(2 * GROUP);
            for (group, stored) in groups.as_chunks_mut::<GROUP_BYTES>().0.iter_mut().zip(stored) {
                // Columns past the last are zero.
                let mut parts = [(REACH + 1, 0); GROUP];
                for (part, weight) in parts.iter_mut().zip(weights(stored)) {
                    *part = code(weight, top);
                }
                let byte = |c: usize| parts[c].1 | parts[c + 2].1 << 8;
                let code =
                    |c: usize| parts[c].0 | parts[c + 2].0 << 4 | parts[c + 4].0 << 8 | parts[c + 6].0 << 12;
                let words = [both(byte(0), byte(1)), both(byte(4), byte(5)), both(code(0), code(1))];
                for (plane, word) in group.chunks_exact_mut(VECTOR).zip(words) {
                    plane[lane..lane + 4].copy_from_slice(&word);
                }
            }
        }
    }

    fn outliers(panel: &[u8], lane: usize, row: &[u8], found: &mut Vec<Outlier>) {
        let (tops, _) = parts(panel);
        let top = u16::from_le_bytes([tops[4 * lane], tops[4 * lane + 1]]) >> 7;
        let outliers = weights(row).enumerate().filter(|(_, weight)| is_outlier(*weight, top));
        found.extend(outliers.map(|(column, weight)| Outlier::new(lane, column, weight)));
    }

    #[inline(always)]
    fn unpack<S: Simd>(slice: &PanelSlice, out: &mut [u8]) {
        let (top, groups) = parts(slice.panel);
        let top = S::load_bytes(top);
        let groups = &groups[slice.range.start / GROUP..slice.range.end.div_ceil(GROUP)];
        let columns = out.as_chunks_mut::<VECTOR>().0;
        for (group, columns) in groups.iter().zip(columns.chunks_mut(GROUP)) {
            let pairs = pairs::<S>(group, top);
            for (pair, columns) in pairs.into_iter().zip(columns.chunks_mut(2)) {
                let (even, odd) = S::widen_pairs(pair);
                S::store_le(even, &mut columns[0]);
                if let Some(column) = columns.get_mut(1) {
                    S::store_le(odd, column);
                }
            }
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, _prepared: &'a [i32]) -> &'a [f32] {
        x.row(row)
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[&[f32]; R],
        fetch: Fetch,
    ) -> [[S::F; R]; N] {
        let (whole, rest) = (cols / GROUP, cols % GROUP);
        let mut sums = [Sums::<S, R>::zero(); N];
        add_groups(panels, whole, &x.map(|x| &x[..cols]), fetch, &mut sums);
        if rest > 0 {
            each_row!(N, p, {
                let (top, groups) = parts(panels[p]);
                let pairs = pairs::<S>(&groups[whole], S::load_bytes(top));
                for c in 0..rest {
                    let (even, odd) = S::widen_pairs(pairs[c / 2]);
                    let column = if c % 2 == 0 { even } else { odd };
                    each_row!(R, r, {
                        let x = S::splat(x[r][GROUP * whole + c]);
                        sums[p].total[r] = S::fma(column, x, sums[p].total[r]);
                    });
                }
            });
        }
        totals(&sums)
    }
}

impl Format for Bf16Tiles {
    type Home = Self;
    type Row<'a> = TwoParts<'a>;

    const PREPARED: usize = 0;
    const MANY: Many = Many::Tiles;

    fn panel_bytes(dtype: DType, cols: usize) -> usize {
        Bf16Format::panel_bytes(dtype, cols)
    }

    fn pack(dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        Bf16Format::pack(dtype, panel, cols, first_lane, rows);
    }

    fn outliers(panel: &[u8], lane: usize, row: &[u8], found: &mut Vec<Outlier>) {
        Bf16Format::outliers(panel, lane, row, found);
    }

    #[inline(always)]
    fn unpack<S: Simd>(slice: &PanelSlice, out: &mut [u8]) {
        let (top, groups) = parts(slice.panel);
        let top = S::load_bytes(top);
        let groups = &groups[slice.range.clone()];
        for (group, out) in groups.iter().zip(out.as_chunks_mut::<VECTOR>().0.as_chunks_mut::<PAIRS>().0) {
            let pairs = pairs::<S>(group, top);
            for j in 0..PAIRS {
                S::store_bytes(pairs[j], &mut out[j]);
            }
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, _prepared: &'a [i32]) -> TwoParts<'a> {
        TwoParts::of(x, row)
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[TwoParts<'_>; R],
        fetch: Fetch,
    ) -> [[S::F; R]; N] {
        if !S::HAS_TILES {
            unreachable!("only the AMX instruction set has tile registers");
        }
        let mut sums = [Sums::<S, R>::zero(); N];
        add_groups(panels, cols.div_ceil(GROUP), x, fetch, &mut sums);
        totals(&sums)
    }
}

/// Adds the products of the first groups of some panels.
#[inline(always)]
fn add_groups<S: Simd, X: PairRow, const R: usize, const N: usize>(
    panels: [&[u8]; N],
    count: usize,
    x: &[X; R],
    fetch: Fetch,
    sums: &mut [Sums<S, R>; N],
) {
    assert!(x.iter().all(|x| x.pairs() >= PAIRS * count));
    let panels = panels.map(|panel| (parts(panel).0, &parts(panel).1[..count]));
    for g in 0..count {
        each_row!(N, p, {
            let (top, groups) = panels[p];
            // SAFETY: every panel was cut to `count` groups.
            let group = unsafe { groups.get_unchecked(g) };
            fetch_ahead::<S>(group, fetch);
            let pairs = pairs::<S>(group, S::load_bytes(top));
            for j in 0..PAIRS {
                // SAFETY: every row has these columns.
                unsafe { sums[p].add(pairs[j], x, PAIRS * g + j) };
            }
            if (g + 1) % (TILE_PAIRS / PAIRS) == 0 || g + 1 == count {
                sums[p].end_tile::<X>();
            }
        });
    }
}

#[inline(always)]
fn totals<S: Simd, const R: usize, const N: usize>(sums: &[Sums<S, R>; N]) -> [[S::F; R]; N] {
    let mut totals = [[S::zero(); R]; N];
    each_row!(N, p, {
        totals[p] = sums[p].total;
    });
    totals
}

#[cfg(test)]
mod tests {
    use super::super::outliers;
    use super::*;
    use crate::simd::Portable;

    /// Rows with exponents of all sizes, of a few, of too many, and of a few with one far above: panel and outliers
    /// together reproduce what was stored.
    #[test]
    fn packing_is_lossless() {
        const COLS: usize = 4081;
        let weight = |lane: usize, col: usize| match lane % 4 {
            // From the smallest to the largest.
            0 => ((lane / 4 * COLS + col) * 37 % 0x7f80) as u16 | (col as u16 & 1) << 15,
            1 => 0x3f80 - (col as u16 * 3 % 0x800),
            2 => 0x3f80 - (col as u16 * 5 % 0x1000),
            _ => {
                if col == 7 {
                    0x6000
                } else {
                    0x3000 + (col as u16 & 0x1ff)
                }
            }
        };
        let rows: Vec<Vec<u8>> = (0..PANEL_ROWS)
            .map(|lane| (0..COLS).flat_map(|col| weight(lane, col).to_le_bytes()).collect())
            .collect();
        let stored: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let mut panel = vec![0; Bf16Format::panel_bytes(DType::BF16, COLS)];
        Bf16Format::pack(DType::BF16, &mut panel, COLS, 0, &stored);
        let mut columns = vec![0; COLS * VECTOR];
        let slice = PanelSlice { dtype: DType::BF16, panel: &panel, cols: COLS, range: 0..COLS };
        Bf16Format::unpack::<Portable>(&slice, &mut columns);
        let mut found = Vec::new();
        stored.iter().enumerate().for_each(|(lane, row)| Bf16Format::outliers(&panel, lane, row, &mut found));
        assert!(found.len() > COLS && found.len() < 8 * COLS, "{} outliers", found.len());
        for (col, column) in columns.as_chunks::<VECTOR>().0.iter().enumerate() {
            let mut held: [f32; PANEL_ROWS] = bytemuck::cast(*column);
            outliers::add(&found, &mut held, |c| if c == col { 1.0 } else { 0.0 });
            for (lane, held) in held.into_iter().enumerate() {
                let want = f32::from_bits(u32::from(weight(lane, col)) << 16);
                assert_eq!(held, want, "row {lane}, column {col}");
            }
        }
    }
}
