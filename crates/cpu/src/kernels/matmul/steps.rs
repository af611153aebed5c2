//! Weights whose nibbles stand on a table of sixteen whole steps: `iq4_nl`, `iq4_xs` and `mxfp4`.
//!
//! Panel: nibble planes `[tile][256]`, what scales have per tile, then what they have per stored block. A
//! byte shuffle turns nibbles into steps with a zero point; from there on it is `q4_0`.

use std::marker::PhantomData;

use super::coded::{Coded, Kind, TILE, Tile, copy_nibbles, nibbles};
use crate::simd::Simd;

/// One stored type.
pub(crate) trait Steps: Send + Sync + 'static {
    /// The steps, [`Steps::ZERO`] added.
    const TABLE: [u8; 16];
    /// 128 where steps need all eight bits, else the power of two that makes them fit.
    const ZERO: i32;
    /// Bytes and tiles of a stored block.
    const BLOCK: (usize, usize);
    /// Bytes of a panel's scales per tile and per stored block.
    const SCALES: (usize, usize);

    /// Packs the scales of one block of a row, whose tiles and whose own part are given.
    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], own: &mut [u8]);
    /// The nibbles of a block's tile.
    fn tile(block: &[u8], j: usize) -> &[u8];
    /// Scales of a tile.
    fn scale<S: Simd>(tiles: &[u8], blocks: &[u8], t: usize) -> S::F;
}

/// The steps of `iq4_nl` and `iq4_xs`: finer near zero.
const UNEVEN: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

#[inline(always)]
fn part<const BYTES: usize>(plane: &[u8], i: usize) -> &[u8; BYTES] {
    plane[i * BYTES..][..BYTES].first_chunk().expect("a whole vector")
}

/// `d·step`, d an f16.
pub(crate) struct Iq4Nl;

impl Steps for Iq4Nl {
    const TABLE: [u8; 16] = UNEVEN;
    const ZERO: i32 = 128;
    const BLOCK: (usize, usize) = (18, 1);
    const SCALES: (usize, usize) = (32, 0);

    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], _own: &mut [u8]) {
        tiles[2 * lane..][..2].copy_from_slice(&block[..2]);
    }

    fn tile(block: &[u8], _j: usize) -> &[u8] {
        &block[2..]
    }

    #[inline(always)]
    fn scale<S: Simd>(tiles: &[u8], _blocks: &[u8], t: usize) -> S::F {
        S::load_f16(part(tiles, t))
    }
}

/// `d·(scale − 32)·step`, a scale of six bits per tile and an f16 d per 256 columns.
pub(crate) struct Iq4Xs;

impl Steps for Iq4Xs {
    const TABLE: [u8; 16] = UNEVEN;
    const ZERO: i32 = 128;
    const BLOCK: (usize, usize) = (136, 8);
    const SCALES: (usize, usize) = (16, 32);

    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], own: &mut [u8]) {
        own[2 * lane..][..2].copy_from_slice(&block[..2]);
        for j in 0..8 {
            let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
            let high = block[2 + j / 4] >> (j % 4 * 2) & 3;
            tiles[j * 16 + lane] = (low | high << 4).wrapping_sub(32);
        }
    }

    fn tile(block: &[u8], j: usize) -> &[u8] {
        &block[8 + 16 * j..][..16]
    }

    #[inline(always)]
    fn scale<S: Simd>(tiles: &[u8], blocks: &[u8], t: usize) -> S::F {
        S::mul(S::load_f16(part(blocks, t / 8)), S::load_i8(part(tiles, t)))
    }
}

/// `2^(e − 127)·e2m1`; steps are doubled to be whole, and scales halved.
pub(crate) struct Mxfp4;

impl Steps for Mxfp4 {
    const TABLE: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];
    const ZERO: i32 = 16;
    const BLOCK: (usize, usize) = (17, 1);
    const SCALES: (usize, usize) = (32, 0);

    fn pack_scales(block: &[u8], lane: usize, tiles: &mut [u8], _own: &mut [u8]) {
        // Half the scale is a power of two, which bf16 holds exactly; the two smallest are subnormal.
        let half = match block[0] {
            e @ 0..2 => 0x20 << e,
            e => u16::from(e - 1) << 7,
        };
        tiles[2 * lane..][..2].copy_from_slice(&half.to_le_bytes());
    }

    fn tile(block: &[u8], _j: usize) -> &[u8] {
        &block[1..]
    }

    #[inline(always)]
    fn scale<S: Simd>(tiles: &[u8], _blocks: &[u8], t: usize) -> S::F {
        S::load_bf16(part(tiles, t))
    }
}

/// The format of a table of steps.
pub(crate) struct StepFormat<T>(PhantomData<T>);

/// The planes of a panel.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 256]],
    tiles: &'a [u8],
    blocks: &'a [u8],
}

impl<T: Steps> Coded for StepFormat<T> {
    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = T::ZERO;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        let tiles = cols / TILE;
        tiles * (256 + T::SCALES.0) + tiles / T::BLOCK.1 * T::SCALES.1
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
        let ((bytes, count), (per_tile, per_block)) = (T::BLOCK, T::SCALES);
        let tiles = cols / TILE;
        let (codes, scales) = panel.split_at_mut(tiles * 256);
        let (tile_scales, block_scales) = scales.split_at_mut(tiles * per_tile);
        for i in 0..tiles / count {
            let own_tiles = &mut tile_scales[i * count * per_tile..][..count * per_tile];
            let own = &mut block_scales[i * per_block..][..per_block];
            for (lane, row) in rows.iter().enumerate().map(|(r, row)| (first_lane + r, row)) {
                let block = &row[i * bytes..][..bytes];
                T::pack_scales(block, lane, own_tiles, own);
                for j in 0..count {
                    copy_nibbles(&mut codes[(i * count + j) * 256..][..256], lane, T::tile(block, j));
                }
            }
        }
    }

    #[inline(always)]
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, scales) = panel.split_at(tiles * 256);
        let (tiles, blocks) = scales.split_at(tiles * T::SCALES.0);
        Panel { codes: codes.as_chunks().0, tiles, blocks }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        let mut codes = nibbles::<S>(&panel.codes[t]);
        // Not in a closure: that would be compiled without the instruction set, and called.
        for codes in &mut codes {
            *codes = S::blook_up(&T::TABLE, *codes);
        }
        Tile::whole(codes, T::scale::<S>(panel.tiles, panel.blocks, t))
    }
}
