//! `q6_k` weights: `d·scale·(code − 32)`, a signed scale per 16 columns, d per 256.
//!
//! Panel: nibble planes `[tile][256]`, planes of upper bits `[tile][128]` (two bits per dot step, four
//! steps to a vector), i8 scales `[tile][2][16 rows]`, then f16 d `[super-block][16 rows]`; 210 bytes per
//! row and 256 columns, as stored. A tile's low nibbles are its first 16 columns, so each half of the dot
//! steps has one scale.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::quant::{Q8Row, TILE, dot, each_block, fetch_ahead, load, nibbles, pack_nibbles, split};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q6K;

const ZERO: i32 = 32;
const BLOCK_BYTES: usize = 210;
/// Tiles of a super-block.
const TILES: usize = 8;

/// Codes of tile `j` in a stored block.
fn stored_codes(block: &[u8; BLOCK_BYTES], j: usize) -> [u8; TILE] {
    let (half, p) = (j / 4, j % 4);
    let low: &[u8; TILE] = block[64 * half + 32 * (p % 2)..].first_chunk().expect("a whole block");
    let high: &[u8; TILE] = block[128 + 32 * half..].first_chunk().expect("a whole block");
    std::array::from_fn(|k| low[k] >> (4 * (p / 2)) & 15 | (high[k] >> (2 * p) & 3) << 4)
}

/// Adds the upper bits to the nibbles.
#[inline(always)]
fn widen<S: Simd>(c: [S::B; 8], low: S::B, high: S::B) -> [S::B; 8] {
    let mask = S::bsplat(0x30);
    [
        S::bor(c[0], S::band(S::bshl::<4>(low), mask)),
        S::bor(c[1], S::band(S::bshl::<2>(low), mask)),
        S::bor(c[2], S::band(low, mask)),
        S::bor(c[3], S::band(S::bshr::<2>(low), mask)),
        S::bor(c[4], S::band(S::bshl::<4>(high), mask)),
        S::bor(c[5], S::band(S::bshl::<2>(high), mask)),
        S::bor(c[6], S::band(high, mask)),
        S::bor(c[7], S::band(S::bshr::<2>(high), mask)),
    ]
}

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    subs: &'a [[u8; 16]],
    supers: &'a [[u8; 32]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], tiles: usize) -> Self {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, rest) = rest.split_at(tiles * 128);
        let (subs, supers) = rest.split_at(tiles * 32);
        Panel { codes: codes.as_chunks().0, bits, subs: subs.as_chunks().0, supers: supers.as_chunks().0 }
    }
}

impl Format for Q6K {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 2;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE * 416 + cols / (TILES * TILE) * 32).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let tiles = cols / TILE;
        let (codes, rest) = panel.split_at_mut(tiles * 256);
        let (bits, rest) = rest.split_at_mut(tiles * 128);
        let (subs, supers) = rest.split_at_mut(tiles * 32);
        each_block::<BLOCK_BYTES>(rows, first_lane, |i, lane, block| {
            supers[i * 32 + 2 * lane..][..2].copy_from_slice(&block[208..]);
            for j in 0..TILES {
                let t = i * TILES + j;
                let code = stored_codes(block, j);
                pack_nibbles(&mut codes[t * 256..][..256], lane, &code);
                for half in 0..2 {
                    let four: [u8; 4] = std::array::from_fn(|b| {
                        (0..4).fold(0, |byte, s| byte | code[16 * half + 4 * s + b] >> 4 << (2 * s))
                    });
                    bits[t * 128 + 64 * half + 4 * lane..][..4].copy_from_slice(&four);
                }
                subs[t * 32 + lane] = block[192 + 2 * j];
                subs[t * 32 + 16 + lane] = block[193 + 2 * j];
            }
        });
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        let (codes, _, sums) = split(x.q8_row(row), x.cols());
        for ((out, codes), sum) in prepared.as_chunks_mut::<2>().0.iter_mut().zip(codes).zip(sums) {
            let bytes = codes[..4].iter().flat_map(|word| word.to_ne_bytes());
            let first: i32 = bytes.map(|c| i32::from(c as i8)).sum();
            *out = [-ZERO * first, -ZERO * (sum - first)];
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> Q8Row<'a> {
        Q8Row::new(x, row, prepared, Self::PREPARED)
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[Q8Row; R],
    ) -> [[S::F; R]; N] {
        let tiles = cols / TILE;
        assert!(x.iter().all(|x| x.tiles() == tiles));
        let panels = panels.map(|panel| Panel::new(panel, tiles));
        let mut acc = [[S::zero(); R]; N];
        for t in 0..tiles {
            each_row!(N, p, {
                fetch_ahead::<S, R>(&panels[p].codes[t]);
                let codes = widen::<S>(
                    nibbles::<S>(&panels[p].codes[t]),
                    load::<S>(panels[p].bits, 2 * t),
                    load::<S>(panels[p].bits, 2 * t + 1),
                );
                let d = S::load_f16(&panels[p].supers[t / TILES]);
                let scales = [
                    S::mul(d, S::load_i8(&panels[p].subs[2 * t])),
                    S::mul(d, S::load_i8(&panels[p].subs[2 * t + 1])),
                ];
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles, with two prepared words each.
                    let (x_codes, scale_x) = unsafe { (x[r].codes(t), S::splat(x[r].scale(t))) };
                    // SAFETY: as above.
                    let start = unsafe { [x[r].prepared(2 * t), x[r].prepared(2 * t + 1)] };
                    let low = dot::<S, 0, 4>(S::isplat(start[0]), &codes, x_codes);
                    let high = dot::<S, 4, 8>(S::isplat(start[1]), &codes, x_codes);
                    acc[p][r] = S::fma(S::mul(scales[0], scale_x), S::to_float(low), acc[p][r]);
                    acc[p][r] = S::fma(S::mul(scales[1], scale_x), S::to_float(high), acc[p][r]);
                });
            });
        }
        acc
    }
}
