//! Weights that are lines, `scale·code + low`: `q4_1`, `q5_1`, `q4_k` and `q5_k`.
//!
//! Panel: nibble planes `[tile][256]`, planes of fifth bits `[tile][64]` where there are any (as in
//! `q5_0`), what lines have per tile, then what they have per stored block. The lows meet the sum of the
//! activations: `acc = fma(low, scale_x·Σ codes_x, acc)`.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use mambo_tensor::DType;

use super::format::{Format, each_row};
use super::q5_0::widen;
use super::quant::{Q8Row, TILE, dot, fetch_ahead, load, nibbles, pack_nibbles, split};
use crate::shared::View;
use crate::simd::Simd;

/// One stored type.
pub(crate) trait Line: Send + Sync + 'static {
    /// Whether codes have five bits.
    const FIFTH: bool;
    /// Bytes and tiles of a stored block.
    const BLOCK: (usize, usize);
    /// Bytes of a panel's scales and lows per tile and per stored block.
    const SCALES: (usize, usize);

    /// Packs scales and lows of one block of a row, whose tiles and whose own part are given.
    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], own: &mut [u8]);
    /// The codes of a block's tile.
    fn codes(block: &[u8], j: usize) -> [u8; TILE];
    /// Scales and lows of a tile.
    fn line<S: Simd>(tiles: &[u8], blocks: &[u8], t: usize) -> (S::F, S::F);
}

/// An f16 scale and an f16 low per tile: `q4_1`, or `q5_1` with fifth bits.
pub(crate) struct Single<const FIFTH: bool>;

impl<const FIFTH: bool> Line for Single<FIFTH> {
    const FIFTH: bool = FIFTH;
    const BLOCK: (usize, usize) = (if FIFTH { 24 } else { 20 }, 1);
    const SCALES: (usize, usize) = (64, 0);

    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], _own: &mut [u8]) {
        tiles[2 * lane..][..2].copy_from_slice(&block[..2]);
        tiles[32 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
    }

    fn codes(block: &[u8], _j: usize) -> [u8; TILE] {
        let high = if FIFTH { u32::from_le_bytes([block[4], block[5], block[6], block[7]]) } else { 0 };
        let low = &block[Self::BLOCK.0 - 16..];
        std::array::from_fn(|i| low[i % 16] >> (i / 16 * 4) & 15 | ((high >> i & 1) as u8) << 4)
    }

    #[inline(always)]
    fn line<S: Simd>(tiles: &[u8], _blocks: &[u8], t: usize) -> (S::F, S::F) {
        let (scale, low) = tiles[t * 64..][..64].split_at(32);
        let lanes = |bytes: &[u8]| S::load_f16(bytes.first_chunk().expect("a whole vector"));
        (lanes(scale), lanes(low))
    }
}

/// `d·scale·code − dmin·min`, six bits of scale and min per tile, d and dmin per 256 columns: `q4_k`, or
/// `q5_k` with fifth bits.
pub(crate) struct Nested<const FIFTH: bool>;

/// Scale and minimum of sub-block `j` from their twelve packed bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (packed[j] & 63, packed[j + 4] & 63);
    }
    let scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4;
    let min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    (scale, min)
}

impl<const FIFTH: bool> Line for Nested<FIFTH> {
    const FIFTH: bool = FIFTH;
    const BLOCK: (usize, usize) = (if FIFTH { 176 } else { 144 }, 8);
    const SCALES: (usize, usize) = (32, 64);

    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], own: &mut [u8]) {
        own[2 * lane..][..2].copy_from_slice(&block[..2]);
        own[32 + 2 * lane..][..2].copy_from_slice(&block[2..4]);
        for j in 0..8 {
            let (scale, min) = scale_and_min(&block[4..16], j);
            tiles[j * 32 + lane] = scale;
            tiles[j * 32 + 16 + lane] = min;
        }
    }

    fn codes(block: &[u8], j: usize) -> [u8; TILE] {
        let low = &block[Self::BLOCK.0 - 128 + j / 2 * 32..][..32];
        let fifth = |l: usize| if FIFTH { (block[16 + l] >> j & 1) << 4 } else { 0 };
        std::array::from_fn(|l| low[l] >> (j % 2 * 4) & 15 | fifth(l))
    }

    #[inline(always)]
    fn line<S: Simd>(tiles: &[u8], blocks: &[u8], t: usize) -> (S::F, S::F) {
        let (scale, min) = tiles[t * 32..][..32].split_at(16);
        let (d, dmin) = blocks[t / 8 * 64..][..64].split_at(32);
        let whole = |bytes: &[u8]| S::load_u8(bytes.first_chunk().expect("a whole vector"));
        let half = |bytes: &[u8]| S::load_f16(bytes.first_chunk().expect("a whole vector"));
        (S::mul(half(d), whole(scale)), S::sub(S::zero(), S::mul(half(dmin), whole(min))))
    }
}

/// The format of a kind of lines.
pub(crate) struct LineFormat<L>(PhantomData<L>);

/// The planes of a panel.
struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    tiles: &'a [u8],
    blocks: &'a [u8],
}

impl<L: Line> LineFormat<L> {
    const BITS: usize = if L::FIFTH { 64 } else { 0 };

    #[inline(always)]
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, rest) = rest.split_at(tiles * Self::BITS);
        let (tile_scales, blocks) = rest.split_at(tiles * L::SCALES.0);
        Panel { codes: codes.as_chunks().0, bits, tiles: tile_scales, blocks }
    }
}

impl<L: Line> Format for LineFormat<L> {
    type Row<'a> = Q8Row<'a>;

    const PREPARED: usize = 1;

    fn panel_bytes(_dtype: DType, cols: usize) -> usize {
        let tiles = cols / TILE;
        let blocks = tiles / L::BLOCK.1;
        (tiles * (256 + Self::BITS + L::SCALES.0) + blocks * L::SCALES.1).next_multiple_of(64)
    }

    fn pack(_dtype: DType, panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let ((bytes, count), (per_tile, per_block)) = (L::BLOCK, L::SCALES);
        let tiles = cols / TILE;
        let (planes, rest) = panel.split_at_mut(tiles * 256);
        let (bits, rest) = rest.split_at_mut(tiles * Self::BITS);
        let (tile_scales, block_scales) = rest.split_at_mut(tiles * per_tile);
        for i in 0..tiles / count {
            let own_tiles = &mut tile_scales[i * count * per_tile..][..count * per_tile];
            let own = &mut block_scales[i * per_block..][..per_block];
            for (lane, row) in rows.iter().enumerate().map(|(r, row)| (first_lane + r, row)) {
                let block = &row[i * bytes..][..bytes];
                L::pack_scales(block, lane, own_tiles, own);
                for j in 0..count {
                    let (t, codes) = (i * count + j, L::codes(block, j));
                    pack_nibbles(&mut planes[t * 256..][..256], lane, &codes);
                    if L::FIFTH {
                        let four: [u8; 4] = std::array::from_fn(|b| {
                            (0..8).fold(0, |byte, s| byte | codes[4 * s + b] >> 4 << s)
                        });
                        bits[t * 64 + 4 * lane..][..4].copy_from_slice(&four);
                    }
                }
            }
        }
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
        let panels = panels.map(|panel| Self::planes(panel, tiles));
        let mut acc = [[S::zero(); R]; N];
        for t in 0..tiles {
            each_row!(N, p, {
                fetch_ahead::<S, R>(&panels[p].codes[t]);
                let mut codes = nibbles::<S>(&panels[p].codes[t]);
                if L::FIFTH {
                    codes = widen::<S>(codes, load::<S>(panels[p].bits, t));
                }
                let (scale, low) = L::line::<S>(panels[p].tiles, panels[p].blocks, t);
                each_row!(R, r, {
                    // SAFETY: every row has `tiles` tiles.
                    let (sum_x, x_codes, scale_x) =
                        unsafe { (x[r].prepared(t), x[r].codes(t), x[r].scale(t)) };
                    let sum = dot::<S, 0, 8>(S::isplat(0), &codes, x_codes);
                    acc[p][r] = S::fma(S::mul(scale, S::splat(scale_x)), S::to_float(sum), acc[p][r]);
                    acc[p][r] = S::fma(low, S::splat(f32::from_bits(sum_x as u32)), acc[p][r]);
                });
            });
        }
        acc
    }
}
