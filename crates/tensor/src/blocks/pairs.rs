//! FP4 as safetensors files keep it, to blocks and back: there the codes of two neighbours share a byte, the low
//! nibble first, and the scales lie in a tensor of their own; a block holds both, with other codes in a byte.
//!
//! Must not know names or files. The lengths are the caller's to check.

use super::{Block, Mxfp4, Nvfp4};

/// Codes of a stored byte.
pub const CODES_PER_BYTE: usize = 2;

/// Pairs of codes and a scale for each 16 values, as `nvfp4` blocks.
pub fn nvfp4_blocks(codes: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = vec![0; codes.len() + scales.len()];
    let stored = codes.as_chunks::<8>().0.as_chunks::<4>().0.iter().zip(scales.as_chunks().0);
    for (block, (codes, scales)) in Nvfp4::row_mut(&mut out).iter_mut().zip(stored) {
        // Minus zero is a scale of zero, but has the bit that blocks leave clear.
        block.scales = scales.map(|scale| scale & 0x7f);
        for (qs, pairs) in block.qs.iter_mut().zip(codes) {
            let [low, high] = pairs.as_chunks().0 else { unreachable!("8 bytes") };
            *qs = beside([low, high]);
        }
    }
    out
}

/// The codes of `nvfp4` blocks, in pairs.
pub fn nvfp4_codes(blocks: &[u8], out: &mut [u8]) {
    let out = out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    for (block, out) in Nvfp4::row(blocks).iter().zip(out) {
        for (qs, out) in block.qs.iter().zip(out) {
            let code = |value: usize| if value < 8 { qs[value] & 15 } else { qs[value - 8] >> 4 };
            *out = std::array::from_fn(|pair| code(2 * pair) | code(2 * pair + 1) << 4);
        }
    }
}

/// The scales of `nvfp4` blocks.
pub fn nvfp4_scales(blocks: &[u8], out: &mut [u8]) {
    for (block, out) in Nvfp4::row(blocks).iter().zip(out.as_chunks_mut().0) {
        *out = block.scales;
    }
}

/// Pairs of codes and an exponent for each 32 values, as `mxfp4` blocks.
pub fn mxfp4_blocks(codes: &[u8], exponents: &[u8]) -> Vec<u8> {
    let mut out = vec![0; codes.len() + exponents.len()];
    let stored = codes.as_chunks::<16>().0.iter().zip(exponents);
    for (block, (codes, e)) in Mxfp4::row_mut(&mut out).iter_mut().zip(stored) {
        block.e = *e;
        let [first, second, third, fourth] = codes.as_chunks::<4>().0 else { unreachable!("16 bytes") };
        let words = [[first, third], [second, fourth]];
        for (qs, words) in block.qs.as_chunks_mut().0.iter_mut().zip(words) {
            *qs = beside(words);
        }
    }
    out
}

/// Two runs of eight codes, which come in pairs: code j of the first beside code j of the second.
fn beside([low, high]: [&[u8; 4]; 2]) -> [u8; 8] {
    (spread(*low) | spread(*high) << 4).to_le_bytes()
}

/// Four bits each into bytes of their own, in order.
fn spread(nibbles: [u8; 4]) -> u64 {
    let x = u64::from(u32::from_le_bytes(nibbles));
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::E2M1;
    use crate::{DType, decode_row};

    fn noise(n: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..n).map(|_| next()).collect()
    }

    /// The value of code `i`, neighbours sharing a byte.
    fn value(codes: &[u8], i: usize) -> f32 {
        E2M1[usize::from(codes[i / 2] >> (i % 2 * 4) & 15)]
    }

    #[test]
    fn nvfp4_keeps_every_value_and_comes_back() {
        let codes = noise(96, 1);
        let scales: Vec<u8> = noise(12, 2).iter().map(|scale| scale % 0x7f).collect();
        let blocks = nvfp4_blocks(&codes, &scales);
        let (mut values, mut factors) = (vec![0.0; 192], vec![0.0; 12]);
        decode_row(DType::NVFP4, &blocks, &mut values).unwrap();
        decode_row(DType::F8E4M3, &scales, &mut factors).unwrap();
        let want: Vec<f32> = (0..192).map(|i| value(&codes, i) * factors[i / 16]).collect();
        assert_eq!(values, want);
        let (mut codes_again, mut scales_again) = (vec![0; 96], vec![0; 12]);
        nvfp4_codes(&blocks, &mut codes_again);
        nvfp4_scales(&blocks, &mut scales_again);
        assert_eq!((codes_again, scales_again), (codes, scales));
    }

    #[test]
    fn mxfp4_keeps_every_value() {
        let codes = noise(48, 3);
        let exponents = [127, 125, 130];
        let mut values = vec![0.0; 96];
        decode_row(DType::MXFP4, &mxfp4_blocks(&codes, &exponents), &mut values).unwrap();
        let scale = |i: usize| 2f32.powi(i32::from(exponents[i / 32]) - 127);
        assert_eq!(values, (0..96).map(|i| value(&codes, i) * scale(i)).collect::<Vec<_>>());
    }
}
