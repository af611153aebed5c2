//! Weights that are lines, `scale·code + low`: `q4_1`, `q5_1`, `q4_k` and `q5_k`.
//!
//! Panel: nibble planes `[tile][256]`, planes of fifth bits `[tile][64]` where there are any (as in
//! `q5_0`), what lines have per tile, then what they have per stored block. The lows meet the sum of the
//! activations' codes.

use std::marker::PhantomData;

use super::coded::{Coded, Kind, TILE, Tile, load, nibbles, pack_nibbles};
use super::q5_0::widen;
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
        (halves::<S>(scale), halves::<S>(low))
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
        let low = S::mul(halves::<S>(dmin), wholes::<S>(min));
        (S::mul(halves::<S>(d), wholes::<S>(scale)), S::sub(S::zero(), low))
    }
}

/// Sixteen f16.
#[inline(always)]
fn halves<S: Simd>(bytes: &[u8]) -> S::F {
    S::load_f16(bytes.first_chunk().expect("a whole vector"))
}

/// Sixteen bytes.
#[inline(always)]
fn wholes<S: Simd>(bytes: &[u8]) -> S::F {
    S::load_u8(bytes.first_chunk().expect("a whole vector"))
}

/// The format of a kind of lines.
pub(crate) struct LineFormat<L>(PhantomData<L>);

/// The planes of a panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    tiles: &'a [u8],
    blocks: &'a [u8],
}

impl<L: Line> LineFormat<L> {
    const BITS: usize = if L::FIFTH { 64 } else { 0 };
}

impl<L: Line> Coded for LineFormat<L> {
    const KIND: Kind = Kind::Line;
    const ZERO: i32 = 0;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        let tiles = cols / TILE;
        tiles * (256 + Self::BITS + L::SCALES.0) + tiles / L::BLOCK.1 * L::SCALES.1
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
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
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, rest) = rest.split_at(tiles * Self::BITS);
        let (tiles, blocks) = rest.split_at(tiles * L::SCALES.0);
        Panel { codes: codes.as_chunks().0, bits, tiles, blocks }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        let mut codes = nibbles::<S>(&panel.codes[t]);
        if L::FIFTH {
            codes = widen::<S>(codes, load::<S>(panel.bits, t));
        }
        let (scale, low) = L::line::<S>(panel.tiles, panel.blocks, t);
        Tile::line(codes, scale, low)
    }
}
