//! Affine groups of four or eight bits with f32 activations: `scale·code + bias`.
//!
//! Panel: the group length, then codes `[bytes of a row][16 rows]` in their stored order, then f32
//! `[group][scale x 16, bias x 16]`, whatever float type is stored. A tile of 32 columns is summed separately,
//! `acc = fma(scale, Σ code·x, acc)`, and the bias is multiplied with the sum of the activations.
#![allow(unsafe_code)]

use mambo_tensor::{Affine, DType, decode_row};

use super::coded::TILE;
use super::format::{Format, Many, PANEL_ROWS};
use crate::isa::Fetch;
use crate::kernels::each_row::each_row;
use crate::shared::View;
use crate::simd::Simd;

/// Codes of this many bits, 4 or 8.
pub(crate) struct AffineFormat<const BITS: usize>;

/// Bytes before the codes; a whole vector keeps the codes aligned.
const HEAD: usize = 64;
/// Bytes of a group's scales and biases.
const LINE: usize = 2 * 4 * PANEL_ROWS;
const WHOLE: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// An activation row with the sums of its tiles.
#[derive(Clone, Copy)]
pub(crate) struct SummedRow<'a> {
    tiles: &'a [[f32; TILE]],
    sums: &'a [i32],
}

fn affine(dtype: DType) -> Affine {
    let DType::Affine(affine) = dtype else { unreachable!("only affine groups have this format") };
    affine
}

/// The planes of a panel.
struct Panel<'a> {
    group_tiles: usize,
    codes: &'a [[u8; PANEL_ROWS]],
    lines: &'a [[u8; LINE]],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(panel: &'a [u8], code_bytes: usize) -> Self {
        let (head, rest) = panel.split_at(HEAD);
        let (codes, lines) = rest.split_at(code_bytes * PANEL_ROWS);
        Panel { group_tiles: usize::from(head[0]), codes: codes.as_chunks().0, lines: lines.as_chunks().0 }
    }

    #[inline(always)]
    fn line<S: Simd>(&self, t: usize) -> (S::F, S::F) {
        let (scale, bias) = self.lines[t / self.group_tiles].split_at(LINE / 2);
        let lanes = |bytes: &[u8]| S::load_le(bytes.first_chunk().expect("a whole vector"));
        (lanes(scale), lanes(bias))
    }
}

/// `Σ code·x` of a tile.
#[inline(always)]
fn sums<S: Simd, const BITS: usize, const R: usize>(
    codes: &[[u8; PANEL_ROWS]],
    x: &[&[f32; TILE]; R],
) -> [S::F; R] {
    let mut sums = [S::zero(); R];
    for (j, codes) in codes.iter().enumerate() {
        if BITS == 4 {
            let codes = S::load_u8_int(codes);
            let (low, high) = (S::look_up(&WHOLE, codes), S::look_up(&WHOLE, S::isar::<4>(codes)));
            each_row!(R, r, {
                sums[r] = S::fma(low, S::splat(x[r][2 * j]), sums[r]);
                sums[r] = S::fma(high, S::splat(x[r][2 * j + 1]), sums[r]);
            });
        } else {
            let codes = S::load_u8(codes);
            each_row!(R, r, {
                sums[r] = S::fma(codes, S::splat(x[r][j]), sums[r]);
            });
        }
    }
    sums
}

impl<const BITS: usize> Format for AffineFormat<BITS> {
    type Home = Self;
    type Row<'a> = SummedRow<'a>;

    const PREPARED: usize = 1;
    const MANY: Many = Many::Packed;

    fn panel_bytes(dtype: DType, cols: usize) -> usize {
        HEAD + (cols * BITS / 8 * PANEL_ROWS + cols / affine(dtype).group() * LINE).next_multiple_of(64)
    }

    fn pack(dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let affine = affine(dtype);
        let (code_bytes, float) = (affine.code_bytes(), affine.scale().dtype());
        let (head, rest) = panel.split_at_mut(HEAD);
        let (codes, lines) = rest.split_at_mut(cols * BITS / 8 * PANEL_ROWS);
        head[0] = (affine.group() / TILE) as u8;
        for (lane, row) in rows.iter().enumerate().map(|(r, row)| (first_lane + r, row)) {
            for (g, group) in row.chunks_exact(dtype.block_bytes()).enumerate() {
                let (stored, line) = group.split_at(code_bytes);
                for (j, byte) in stored.iter().enumerate() {
                    codes[(g * code_bytes + j) * PANEL_ROWS + lane] = *byte;
                }
                let mut values = [0.0; 2];
                decode_row(float, line, &mut values).expect("a scale and a bias");
                for (half, value) in values.into_iter().enumerate() {
                    lines[g * LINE + half * LINE / 2 + 4 * lane..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(x: &View, row: usize, prepared: &mut [i32]) {
        for (out, tile) in prepared.iter_mut().zip(x.row(row).as_chunks::<TILE>().0) {
            *out = tile.iter().sum::<f32>().to_bits() as i32;
        }
    }

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, prepared: &'a [i32]) -> SummedRow<'a> {
        SummedRow { tiles: x.row(row).as_chunks().0, sums: prepared }
    }

    #[inline(always)]
    fn product<S: Simd, const R: usize, const N: usize>(
        panels: [&[u8]; N],
        cols: usize,
        x: &[SummedRow; R],
        _fetch: Fetch,
    ) -> [[S::F; R]; N] {
        let (tiles, tile_bytes) = (cols / TILE, TILE * BITS / 8);
        assert!(x.iter().all(|x| x.tiles.len() == tiles && x.sums.len() == tiles));
        let panels = panels.map(|panel| Panel::new(panel, tiles * tile_bytes));
        let mut acc = [[S::zero(); R]; N];
        for t in 0..tiles {
            // SAFETY: every row has `tiles` tiles and sums.
            let rows: [&[f32; TILE]; R] = std::array::from_fn(|r| unsafe { x[r].tiles.get_unchecked(t) });
            each_row!(N, p, {
                let codes = &panels[p].codes[t * tile_bytes..(t + 1) * tile_bytes];
                let sums = sums::<S, BITS, R>(codes, &rows);
                let (scale, bias) = panels[p].line::<S>(t);
                each_row!(R, r, {
                    // SAFETY: as above.
                    let sum_x = f32::from_bits(unsafe { *x[r].sums.get_unchecked(t) } as u32);
                    acc[p][r] = S::fma(scale, sums[r], acc[p][r]);
                    acc[p][r] = S::fma(bias, S::splat(sum_x), acc[p][r]);
                });
            });
        }
        acc
    }
}
