//! Block formats: groups of values that share a scale. One file per format, its layout the struct in it.
//!
//! This file processes rows block by block; it knows no layout.

mod affine;
mod fp4;
mod grids;
pub(crate) mod grouped;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
mod lattice;
pub(crate) mod mxfp4;
mod nested;
mod nested_affine;
pub(crate) mod nvfp4;
pub mod pairs;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod search;
mod six_bit;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;

use bytemuck::Pod;
use half::f16;

/// The points of `iq2_xxs`: eight coordinates of two bits, which stand for 8, 25 and 43.
pub use self::grids::IQ2_XXS as IQ2_XXS_POINTS;
pub use fp4::{E2M1, E2M1_DOUBLED, E2M1_MAX};
pub use iq1_m::Iq1M;
pub use iq1_s::Iq1S;
pub use iq2_s::Iq2S;
pub use iq2_xs::Iq2Xs;
pub use iq2_xxs::{Iq2Xxs, Iq2XxsSub};
pub use iq3_s::Iq3S;
pub use iq3_xxs::Iq3Xxs;
pub use iq4_nl::{IQ4_STEPS, Iq4Nl};
pub use iq4_xs::Iq4Xs;
pub use mxfp4::Mxfp4;
pub use nvfp4::Nvfp4;
pub use q2_k::Q2K;
pub use q3_k::Q3K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::Q4K;
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;
pub use six_bit::{pack_scales_and_mins, scale_and_min};
pub use tq1_0::Tq1_0;
pub use tq2_0::Tq2_0;

use self::search::Part;
use crate::{DType, TensorError};

/// A block as files store it: its fields in order, made of bytes, so that it may lie at any address.
pub trait Block: Pod {
    /// The type of the values.
    const DTYPE: DType;
    /// Values of a block.
    const ELEMS: usize;

    /// The blocks of a row; panics if they are not whole.
    #[inline(always)]
    fn row(bytes: &[u8]) -> &[Self] {
        bytemuck::cast_slice(bytes)
    }

    /// The same, to be written.
    #[inline(always)]
    fn row_mut(bytes: &mut [u8]) -> &mut [Self] {
        bytemuck::cast_slice_mut(bytes)
    }
}

/// Decodes a row of whole blocks.
fn decode_blocks<B: Block, const ELEMS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&B, &mut [f32; ELEMS]),
) {
    const { assert!(ELEMS == B::ELEMS && align_of::<B>() == 1) };
    for (block, out) in B::row(bytes).iter().zip(out.as_chunks_mut().0) {
        decode(block, out);
    }
}

/// Encodes a row of whole blocks; `encode` gives `None` when a block's scale is beyond the format's range.
fn encode_blocks<B: Block, const ELEMS: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(Part<ELEMS>) -> Option<B>,
) -> Result<(), TensorError> {
    const { assert!(ELEMS == B::ELEMS && align_of::<B>() == 1) };
    let weights = importance.map(|w| w.as_chunks::<ELEMS>().0);
    let mut w = [1.0; ELEMS];
    for (i, (x, out)) in values.as_chunks().0.iter().zip(B::row_mut(out)).enumerate() {
        if let Some(weights) = weights {
            normalize(&weights[i], &mut w);
        }
        let Some(block) = encode(Part { x, w: &w }) else {
            let largest = (0..ELEMS).max_by(|&a, &b| x[a].abs().total_cmp(&x[b].abs())).unwrap_or(0);
            let (index, value) = (i * ELEMS + largest, x[largest]);
            return Err(TensorError::OutOfRange { dtype: B::DTYPE, index, value });
        };
        *out = block;
    }
    Ok(())
}

/// Scales weights to at most 1, so that sums of squares stay in range; weights that are all zero become equal.
fn normalize<const N: usize>(weights: &[f32; N], out: &mut [f32; N]) {
    let largest = weights.iter().fold(0f32, |m, &w| m.max(w));
    *out = if largest > 0.0 { weights.map(|w| w / largest) } else { [1.0; N] };
}

/// The value of a stored f16.
fn read_f16(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// The bytes of a value that is exactly representable as f16 (see [`search::to_f16`]).
fn f16_bytes(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

/// 32 codes of four bits: value j low and value j + 16 high in byte j.
#[inline(always)]
fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| qs[i % 16] >> (i / 16 * 4) & 15)
}

/// The inverse of [`nibbles`].
fn join_nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] | codes[j + 16] << 4)
}

/// 32 codes of five bits: the fifth ones as a u32, the others as [`nibbles`].
#[inline(always)]
fn five_bits(qh: [u8; 4], qs: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(qh);
    std::array::from_fn(|i| qs[i % 16] >> (i / 16 * 4) & 15 | ((high >> i & 1) as u8) << 4)
}

/// The inverse of [`five_bits`].
fn split_five_bits(codes: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high = (0..32).fold(0u32, |bits, i| bits | u32::from(codes[i] >> 4) << i);
    (high.to_le_bytes(), join_nibbles(&codes.map(|code| code & 15)))
}
