//! Weights whose nibbles index a table of sixteen integer values: `iq4_nl`, `iq4_xs` and `mxfp4`.
//!
//! Tile: per-tile scales, then 256 bytes of nibbles. A byte shuffle maps nibbles to table values plus a zero point;
//! the rest works as for `q4_0`.

use std::marker::PhantomData;

use mambo_tensor::blocks::{self, Block, E2M1_DOUBLED, IQ4_STEPS};

use super::coded::{Coded, Kind, Tile, copy_nibbles, nibbles, part, put};
use crate::simd::Simd;

/// One stored type.
pub(crate) trait Steps: Send + Sync + 'static {
    /// A block of one row, as stored.
    type Stored: Block;
    /// The table values plus [`Steps::ZERO`].
    const TABLE: [u8; 16];
    /// 128 if the values need all eight bits, else the smallest power of two that makes them non-negative.
    const ZERO: i32;
    /// Bytes of a panel's scales: per stored block and per tile.
    const SCALES: (usize, usize);

    /// Packs what all tiles of a stored block of one row share.
    fn pack_own(_stored: &Self::Stored, _lane: usize, _own: &mut [u8]) {}
    /// Packs the scale of its tile `j`.
    fn pack_scale(stored: &Self::Stored, j: usize, lane: usize, scales: &mut [u8]);
    /// The nibbles of its tile `j`.
    fn stored_nibbles(stored: &Self::Stored, j: usize) -> &[u8; 16];
    /// What the tiles of a stored block share.
    #[inline(always)]
    fn shared<S: Simd>(_own: &[u8]) -> [S::F; 2] {
        [S::zero(); 2]
    }
    /// Scales of a tile.
    fn scale<S: Simd>(shared: [S::F; 2], scales: &[u8]) -> S::F;
}

/// The table values plus a zero point that makes all of them unsigned bytes.
const fn above(steps: [i8; 16], zero: i32) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (steps[i] as i32 + zero) as u8;
        i += 1;
    }
    table
}

/// `d·step`, d an f16.
pub(crate) struct Iq4Nl;

impl Steps for Iq4Nl {
    type Stored = blocks::Iq4Nl;

    const TABLE: [u8; 16] = above(IQ4_STEPS, Self::ZERO);
    const ZERO: i32 = 128;
    const SCALES: (usize, usize) = (0, 32);

    #[inline(always)]
    fn pack_scale(stored: &Self::Stored, _j: usize, lane: usize, scales: &mut [u8]) {
        put(scales, 2 * lane, &stored.d);
    }

    #[inline(always)]
    fn stored_nibbles(stored: &Self::Stored, _j: usize) -> &[u8; 16] {
        &stored.qs
    }

    #[inline(always)]
    fn scale<S: Simd>(_shared: [S::F; 2], scales: &[u8]) -> S::F {
        S::load_f16(part(scales, 0))
    }
}

/// `d·(scale − 32)·step`, a scale of six bits per tile and an f16 d per 256 columns.
pub(crate) struct Iq4Xs;

impl Steps for Iq4Xs {
    type Stored = blocks::Iq4Xs;

    const TABLE: [u8; 16] = above(IQ4_STEPS, Self::ZERO);
    const ZERO: i32 = 128;
    const SCALES: (usize, usize) = (32, 16);

    #[inline(always)]
    fn pack_own(stored: &Self::Stored, lane: usize, own: &mut [u8]) {
        put(own, 2 * lane, &stored.d);
    }

    #[inline(always)]
    fn pack_scale(stored: &Self::Stored, j: usize, lane: usize, scales: &mut [u8]) {
        scales[lane] = stored.scale(j).cast_unsigned();
    }

    #[inline(always)]
    fn stored_nibbles(stored: &Self::Stored, j: usize) -> &[u8; 16] {
        &stored.qs[j]
    }

    #[inline(always)]
    fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
        [S::load_f16(part(own, 0)), S::zero()]
    }

    #[inline(always)]
    fn scale<S: Simd>([d, _]: [S::F; 2], scales: &[u8]) -> S::F {
        S::mul(d, S::load_i8(part(scales, 0)))
    }
}

/// `2^(e − 127)·e2m1`; values are doubled to be integers, and scales halved.
pub(crate) struct Mxfp4;

/// Larger stored exponents are clamped to this one, whose halved scale is 2^104.
const LARGEST_EXPONENT: u8 = 104 + 128;

impl Steps for Mxfp4 {
    type Stored = blocks::Mxfp4;

    const TABLE: [u8; 16] = above(E2M1_DOUBLED, Self::ZERO);
    const ZERO: i32 = 16;
    const SCALES: (usize, usize) = (0, 32);

    #[inline(always)]
    fn pack_scale(stored: &Self::Stored, _j: usize, lane: usize, scales: &mut [u8]) {
        // Half the scale is a power of two, which bf16 represents exactly; the two smallest are subnormal. The product
        // of a larger scale than 2^104 with the anchor of the sums would overflow, so scales are clamped to that; no
        // model comes near it.
        let half = match stored.e {
            e @ 0..2 => 0x20 << e,
            e => u16::from(e.min(LARGEST_EXPONENT) - 1) << 7,
        };
        put(scales, 2 * lane, &half.to_le_bytes());
    }

    #[inline(always)]
    fn stored_nibbles(stored: &Self::Stored, _j: usize) -> &[u8; 16] {
        &stored.qs
    }

    #[inline(always)]
    fn scale<S: Simd>(_shared: [S::F; 2], scales: &[u8]) -> S::F {
        S::load_bf16(part(scales, 0))
    }
}

/// The format of a type with a value table.
pub(crate) struct StepFormat<T>(PhantomData<T>);

impl<T: Steps> Coded for StepFormat<T> {
    type Stored = T::Stored;

    const KIND: Kind = Kind::Whole;
    const ZERO: i32 = T::ZERO;
    const MOVES_ZERO: bool = true;
    const OWN_BYTES: usize = T::SCALES.0;
    const TILE_BYTES: usize = T::SCALES.1 + 256;

    #[inline(always)]
    fn pack(stored: &T::Stored, lane: usize, own: &mut [u8], tiles: &mut [u8]) {
        T::pack_own(stored, lane, own);
        for (j, tile) in tiles.chunks_exact_mut(Self::TILE_BYTES).enumerate() {
            T::pack_scale(stored, j, lane, tile);
            copy_nibbles(&mut tile[T::SCALES.1..], lane, T::stored_nibbles(stored, j));
        }
    }

    #[inline(always)]
    fn shared<S: Simd>(own: &[u8]) -> [S::F; 2] {
        T::shared::<S>(own)
    }

    #[inline(always)]
    fn tile<S: Simd>(shared: [S::F; 2], tile: &[u8]) -> Tile<S> {
        let shift = (Self::zero::<S>() - T::ZERO) as u8;
        let mut table = T::TABLE;
        for step in &mut table {
            *step += shift;
        }
        let mut codes = nibbles::<S>(&tile[T::SCALES.1..]);
        // Not in a closure: that would be compiled without the target features, and called.
        for codes in &mut codes {
            *codes = S::blook_up(&table, *codes);
        }
        Tile::whole(codes, T::scale::<S>(shared, tile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mxfp4_scales_times_the_anchor_stay_finite() {
        let half = |e: u8| {
            let mut scales = [0; 32];
            Mxfp4::pack_scale(&blocks::Mxfp4 { e, qs: [0; 16] }, 0, 3, &mut scales);
            f32::from_bits(u32::from(u16::from_le_bytes([scales[6], scales[7]])) << 16)
        };
        assert_eq!([0, 1, 2, 127, 232].map(half), [-128, -127, -126, -1, 104].map(|e| 2f64.powi(e) as f32));
        assert_eq!([233, 255].map(half), [half(232); 2]);
        assert!((half(232) * crate::activation::ANCHOR).is_finite());
    }
}
