//! `q5_0` weights: `d·(code − 16)`.
//!
//! Panel: nibble planes `[tile][256]`, planes of fifth bits `[tile][64]` (bit j of a byte belongs to dot
//! step j), then f16 scales `[tile][16 rows]`; 22 bytes per row and tile, as stored.

use super::coded::{Coded, Kind, TILE, Tile, copy_nibbles, each_block, load, nibbles};
use crate::simd::Simd;

pub(crate) struct Q5_0;

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
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    codes: &'a [[u8; 256]],
    bits: &'a [u8],
    scales: &'a [[u8; 32]],
}

impl Coded for Q5_0 {
    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = 16;

    type Panel<'a> = Panel<'a>;

    fn bytes(cols: usize) -> usize {
        cols / TILE * 352
    }

    fn pack(panel: &mut [u8], cols: usize, first_lane: usize, rows: &[&[u8]]) {
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
    fn planes(panel: &[u8], tiles: usize) -> Panel<'_> {
        let (codes, rest) = panel.split_at(tiles * 256);
        let (bits, scales) = rest.split_at(tiles * 64);
        Panel { codes: codes.as_chunks().0, bits, scales: scales.as_chunks().0 }
    }

    #[inline(always)]
    fn stream<'p>(panel: &'p Panel, t: usize) -> &'p [u8] {
        &panel.codes[t]
    }

    #[inline(always)]
    fn tile<S: Simd>(panel: &Panel, t: usize) -> Tile<S> {
        let codes = widen::<S>(nibbles::<S>(&panel.codes[t]), load::<S>(panel.bits, t));
        Tile::whole(codes, S::load_f16(&panel.scales[t]))
    }
}
