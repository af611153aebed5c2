//! `q4_0` weights: `d·(code − 8)`.
//!
//! Panel: nibble planes `[tile][256]`, then f16 scales `[tile][16 rows]`; 18 bytes per row and tile, as
//! stored. Per row and tile of activations: 8 dot steps, a conversion, a product and an fma.

use super::format::Format;
use super::quant::{Q8Row, TILE, dot, float, nibbles, prepare_sums, q8_row};
use crate::shared::View;
use crate::simd::Simd;

pub(crate) struct Q4_0;

const ZERO: i32 = 8;
const BLOCK_BYTES: usize = 18;

impl Format for Q4_0 {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(cols: usize) -> usize {
        (cols / TILE * 288).next_multiple_of(64)
    }

    fn pack(panel: &mut [u8], cols: usize, lane: usize, row: &[u8]) {
        let (codes, scales) = panel.split_at_mut(cols / TILE * 256);
        for (t, block) in row.as_chunks::<BLOCK_BYTES>().0.iter().enumerate() {
            scales[t * 32 + 2 * lane..][..2].copy_from_slice(&block[..2]);
            // The stored order of nibbles is the plane's.
            for (v, four) in block[2..].as_chunks::<4>().0.iter().enumerate() {
                codes[t * 256 + 64 * v + 4 * lane..][..4].copy_from_slice(four);
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
        let (codes, scales) = panel.split_at(tiles * 256);
        let (codes, scales) = (codes.as_chunks::<256>().0, scales.as_chunks::<32>().0);
        let mut acc = [S::zero(); R];
        for t in 0..tiles {
            let codes = nibbles::<S>(&codes[t]);
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
