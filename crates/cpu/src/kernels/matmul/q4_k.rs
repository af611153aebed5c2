//! `q4_k` weights: `d·scale·code − dmin·min`, scale and min per 32 columns, d and dmin per 256.
//!
//! Panel: nibble planes `[tile][256]`, `[tile][scale u8 x 16, min u8 x 16]`, then f16
//! `[super-block][d x 16, dmin x 16]`; 148 bytes per row and 256 columns (stored: 144). The minima meet
//! the sum of the activations: `acc = fma(−dmin·min, scale_x·Σ codes_x, acc)`.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::quant::{Q8Row, TILE, dot, each_block, fetch_ahead, nibbles, pack_nibbles, split};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q4K;

const BLOCK_BYTES: usize = 144;
/// Tiles of a super-block.
const TILES: usize = 8;

/// Scale and minimum of sub-block `j` from their twelve packed bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4;
    let min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    (scale, min)
}

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 256]],
    subs: &'a [[u8; 16]],
    supers: &'a [[u8; 32]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], tiles: usize) -> Self {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (subs, supers) = rest.split_at(tiles * 32);
        Panel { codes: codes.as_chunks().0, subs: subs.as_chunks().0, supers: supers.as_chunks().0 }
    }
}

impl Format for Q4K {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE * 288 + cols / (TILES * TILE) * 64).next_multiple_of(64)
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let tiles = cols / TILE;
        let (codes, rest) = panel.split_at_mut(tiles * 256);
        let (subs, supers) = rest.split_at_mut(tiles * 32);
        each_block::<BLOCK_BYTES>(rows, first_lane, |i, lane, block| {
            supers[i * 64 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            supers[i * 64 + 32 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
            for j in 0..TILES {
                let t = i * TILES + j;
                let (scale, min) = scale_and_min(&block[4..16], j);
                subs[t * 32 + lane] = scale;
                subs[t * 32 + 16 + lane] = min;
                let qs: &[u8; TILE] = block[16 + j / 2 * 32..].first_chunk().expect("a whole block");
                pack_nibbles(&mut codes[t * 256..][..256], lane, &qs.map(|q| q >> (j % 2 * 4) & 15));
            }
        });
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        let (_, scales, sums) = split(x.q8_row(row), x.cols());
        for ((out, scale), sum) in prepared.iter_mut().zip(scales).zip(sums) {
            *out = (f32::from_bits(*scale as u32) * *sum as f32).to_bits() as i32;
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
                let codes = nibbles::<S>(&panels[p].codes[t]);
                let scale =
                    S::mul(S::load_f16(&panels[p].supers[t / TILES * 2]), S::load_u8(&panels[p].subs[2 * t]));
                let min = S::mul(
                    S::load_f16(&panels[p].supers[t / TILES * 2 + 1]),
                    S::load_u8(&panels[p].subs[2 * t + 1]),
                );
                let min = S::sub(S::zero(), min);
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles.
                    let (sum_x, x_codes, scale_x) =
                        unsafe { (x[r].prepared(t), x[r].codes(t), x[r].scale(t)) };
                    let sum = dot::<S, 0, 8>(S::isplat(0), &codes, x_codes);
                    acc[p][r] = S::fma(S::mul(scale, S::splat(scale_x)), S::to_float(sum), acc[p][r]);
                    acc[p][r] = S::fma(min, S::splat(f32::from_bits(sum_x as u32)), acc[p][r]);
                });
            });
        }
        acc
    }
}
