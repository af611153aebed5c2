//! `q6_k` weights: `d·scale·(code − 32)`, a signed scale per 16 columns, d per 256.
//!
//! Panel: nibble planes `[tile][256]`, planes of upper bits `[tile][128]` (two bits per dot step, four
//! steps to a vector), i8 scales `[tile][2][16 rows]`, then f16 d `[super-block][16 rows]`; 210 bytes per
//! row and 256 columns, as stored. A tile's low nibbles are its first 16 columns, so each half of the dot
//! steps has one scale.

use super::coded::{Coded, Kind, TILE, Tile, each_block, load, nibbles, pack_nibbles};
use crate::simd::Simd;

pub(crate) struct Q6K;

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
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    subs: &'a [[u8; 16]],
    supers: &'a [[u8; 32]],
}

impl Coded for Q6K {
    const KIND: Kind = Kind::Halves;
    const ZERO: i32 = 32;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        cols / TILE * 416 + cols / (TILES * TILE) * 32
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
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
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, rest) = rest.split_at(tiles * 128);
        let (subs, supers) = rest.split_at(tiles * 32);
        Panel { codes: codes.as_chunks().0, bits, subs: subs.as_chunks().0, supers: supers.as_chunks().0 }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        let nibbles = nibbles::<S>(&panel.codes[t]);
        let codes = widen::<S>(nibbles, load::<S>(panel.bits, 2 * t), load::<S>(panel.bits, 2 * t + 1));
        let d = S::load_f16(&panel.supers[t / TILES]);
        let scale = S::mul(d, S::load_i8(&panel.subs[2 * t]));
        Tile { codes, scale, other: S::mul(d, S::load_i8(&panel.subs[2 * t + 1])) }
    }
}
