//! `q5_0` weights: `d·(code − 16)`.
//!
//! Panel: nibble planes `[tile][256]`, planes of fifth bits `[tile][64]` (bit j of a byte belongs to dot
//! step j), then f16 scales `[tile][16 rows]`; 22 bytes per row and tile, as stored.

use super::format::Format;
use super::quant::{Q8Row, TILE, dot, float, load, nibbles, prepare_sums, q8_row};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q5_0;

const ZERO: i32 = 16;
const BLOCK_BYTES: usize = 22;

/// Adds the fifth bits to the nibbles.
#[inline(always)]
fn widen<S: Simd>(c: [S::B; 8], bits: S::B) -> [S::B; 8] {
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

impl Format for Q5_0 {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(cols: usize) -> usize {
        (cols / TILE * 352).next_multiple_of(64)
    }

    fn pack(panel: &mut [u8], cols: usize, lane: usize, row: &[u8]) {
        let tiles = cols / TILE;
        let (codes, rest) = panel.split_at_mut(tiles * 256);
        let (bits, scales) = rest.split_at_mut(tiles * 64);
        for (t, block) in row.as_chunks::<BLOCK_BYTES>().0.iter().enumerate() {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            for (v, four) in block[6..].as_chunks::<4>().0.iter().enumerate() {
                codes[t * 256 + 64 * v + 4 * lane..][..4].copy_from_slice(four);
            }
            let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            for b in 0..4 {
                let bit = |j: u32| (high >> (4 * j + b) & 1) << j;
                bits[t * 64 + 4 * lane + b as usize] = (0..8).map(bit).sum::<u32>() as u8;
            }
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        prepare_sums(x, row, ZERO, prepared);
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> Q8Row<'a> {
        q8_row(x, row, prepared)
    }

    #[inline(always)]
    fn rows<S: Simd, const R: usize>(panel: &[u8], cols: usize, x: &[Q8Row; R]) -> [S::F; R] {
        let tiles = cols / TILE;
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, scales) = rest.split_at(tiles * 64);
        let (codes, scales) = (codes.as_chunks::<256>().0, scales.as_chunks::<32>().0);
        let mut acc = [S::zero(); R];
        for t in 0..tiles {
            let codes = widen::<S>(nibbles::<S>(&codes[t]), load::<S>(bits, t));
            let scale = S::load_f16(&scales[t]);
            for r in 0..R {
                let sum = dot::<S, 0, 8>(S::isplat(x[r].prepared[t]), &codes, &x[r].codes[t]);
                let scale = S::mul(scale, S::splat(float(&x[r].scales[t])));
                acc[r] = S::fma(scale, S::to_float(sum), acc[r]);
            }
        }
        acc
    }
}
