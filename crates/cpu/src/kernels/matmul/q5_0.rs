//! `q5_0` weights: `d·(code − 16)`.
//!
//! Panel: nibble planes `[tile][256]`, planes of fifth bits `[tile][64]` (bit j of a byte belongs to dot
//! step j), then f16 scales `[tile][16 rows]`; 22 bytes per row and tile, as stored.
#![allow(unsafe_code)]

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::quant::{Q8Row, TILE, copy_nibbles, dot, each_block, fetch_ahead, load, nibbles, prepare_sums};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q5_0;

const ZERO: i32 = 16;
const BLOCK_BYTES: usize = 22;

/// Bits 0, 4, 8, ... 28, one after the other.
fn every_fourth(bits: u32) -> u8 {
    let bits = bits & 0x1111_1111;
    let bits = (bits | bits >> 3) & 0x0303_0303;
    let bits = (bits | bits >> 6) & 0x000f_000f;
    (bits | bits >> 12) as u8
}

/// Adds the fifth bits to the nibbles.
#[inline(always)]
pub(super) fn widen<S: Simd>(c: [S::B; 8], bits: S::B) -> [S::B; 8] {
    let mask = S::bsplat(16);
    [
        S::bor(c[0], S::band(S::bshl::<4>(bits), mask)),
        S::bor(c[1], S::band(S::bshl::<3>(bits), mask)),
        S::bor(c[2], S::band(S::bshl::<2>(bits), mask)),
        S::bor(c[3], S::band(S::bshl::<1>(bits), mask)),
        S::bor(c[4], S::band(bits, mask)),
        S::bor(c[5], S::band(S::bshr::<1>(bits), mask)),
        S::bor(c[6], S::band(S::bshr::<2>(bits), mask)),
        S::bor(c[7], S::band(S::bshr::<3>(bits), mask)),
    ]
}

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    scales: &'a [[u8; 32]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], tiles: usize) -> Self {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, scales) = rest.split_at(tiles * 64);
        Panel { codes: codes.as_chunks().0, bits, scales: scales.as_chunks().0 }
    }
}

impl Format for Q5_0 {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        (cols / TILE * 352).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let tiles = cols / TILE;
        let (codes, rest) = panel.split_at_mut(tiles * 256);
        let (bits, scales) = rest.split_at_mut(tiles * 64);
        each_block::<BLOCK_BYTES>(rows, first_lane, |t, lane, block| {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            copy_nibbles(&mut codes[t * 256..][..256], lane, &block[6..]);
            let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            let four: [u8; 4] = std::array::from_fn(|b| every_fourth(high >> b));
            bits[t * 64 + 4 * lane..][..4].copy_from_slice(&four);
        });
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        prepare_sums(x, row, ZERO, prepared);
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
                let codes = widen::<S>(nibbles::<S>(&panels[p].codes[t]), load::<S>(panels[p].bits, t));
                let scale = S::load_f16(&panels[p].scales[t]);
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles.
                    let (start, x_codes, scale_x) =
                        unsafe { (x[r].prepared(t), x[r].codes(t), x[r].scale(t)) };
                    let sum = dot::<S, 0, 8>(S::isplat(start), &codes, x_codes);
                    acc[p][r] = S::fma(S::mul(scale, S::splat(scale_x)), S::to_float(sum), acc[p][r]);
                });
            });
        }
        acc
    }
}
