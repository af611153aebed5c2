//! Block formats: groups of values that share a scale. One file per format, its layout in the file's head.
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

use half::f16;

/// The points of `iq2_xxs`: eight coordinates of two bits, which stand for 8, 25 and 43.
pub use self::grids::IQ2_XXS as IQ2_XXS_POINTS;

use self::search::Part;
use crate::{DType, TensorError};

/// Decodes a row of whole blocks: `ELEMS` values from every `BYTES` bytes.
fn decode_blocks<const ELEMS: usize, const BYTES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<ELEMS>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// Encodes a row of whole blocks; `encode` gives `None` when a block's scale is beyond the format's range.
fn encode_blocks<const ELEMS: usize, const BYTES: usize>(
    dtype: DType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: impl Fn(Part<ELEMS>, &mut [u8; BYTES]) -> Option<()>,
) -> Result<(), TensorError> {
    let (blocks, _) = values.as_chunks::<ELEMS>();
    let (outs, _) = out.as_chunks_mut::<BYTES>();
    let weights = importance.map(|w| w.as_chunks::<ELEMS>().0);
    let mut w = [1.0; ELEMS];
    for (i, (x, out)) in blocks.iter().zip(outs).enumerate() {
        if let Some(weights) = weights {
            normalize(&weights[i], &mut w);
        }
        if encode(Part { x, w: &w }, out).is_none() {
            let largest = (0..ELEMS).max_by(|&a, &b| x[a].abs().total_cmp(&x[b].abs())).unwrap_or(0);
            return Err(TensorError::OutOfRange { dtype, index: i * ELEMS + largest, value: x[largest] });
        }
    }
    Ok(())
}

/// Scales weights to at most 1, so that sums of squares stay in range; weights that are all zero become equal.
fn normalize<const N: usize>(weights: &[f32; N], out: &mut [f32; N]) {
    let largest = weights.iter().fold(0f32, |m, &w| m.max(w));
    *out = if largest > 0.0 { weights.map(|w| w / largest) } else { [1.0; N] };
}

/// The f16 at the given byte.
fn read_f16(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The u16 at the given byte.
fn read_u16(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The u32 at the given byte.
fn read_u32(block: &[u8], at: usize) -> u32 {
    u32::from(read_u16(block, at)) | u32::from(read_u16(block, at + 2)) << 16
}

/// Stores a value that is exactly representable as f16 (see [`search::to_f16`]).
fn write_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Stores 32 five-bit codes: the fifth bits as a u32, then nibbles, value j low and value j + 16 high.
fn write_five_bits(block: &mut [u8], at: usize, codes: &[u8; 32]) {
    let high = (0..32).fold(0u32, |bits, i| bits | u32::from(codes[i] >> 4) << i);
    block[at..at + 4].copy_from_slice(&high.to_le_bytes());
    for j in 0..16 {
        block[at + 4 + j] = codes[j] & 15 | (codes[j + 16] & 15) << 4;
    }
}
