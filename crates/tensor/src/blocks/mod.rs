//! Block formats: groups of values that share a scale. One file per format, its layout in the file's head.
//!
//! This file walks rows block by block; it knows no layout.

mod fp4;
mod grids;
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

/// Encodes a row of whole blocks; `encode` gives `None` when a block's scale is beyond f16.
fn encode_blocks<const ELEMS: usize, const BYTES: usize>(
    dtype: DType,
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; ELEMS], &mut [u8; BYTES]) -> Option<()>,
) -> Result<(), TensorError> {
    let (blocks, _) = values.as_chunks::<ELEMS>();
    let (outs, _) = out.as_chunks_mut::<BYTES>();
    for (i, (block, out)) in blocks.iter().zip(outs).enumerate() {
        if encode(block, out).is_none() {
            let largest = (0..ELEMS).max_by(|&a, &b| block[a].abs().total_cmp(&block[b].abs())).unwrap_or(0);
            return Err(TensorError::OutOfRange { dtype, index: i * ELEMS + largest, value: block[largest] });
        }
    }
    Ok(())
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

/// Stores a value that is already a f16 in disguise (see [`search::to_f16`]).
fn write_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}
