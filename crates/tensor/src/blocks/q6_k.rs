//! `q6_k`: 256 values in 210 bytes, 16 sub-blocks of 16 values.

use bytemuck::{Pod, Zeroable};

use super::nested::nested;
use super::search::{Part, Whole, codes, inverse};
use super::{Block, decode_blocks, encode_blocks, f16_bytes, read_f16};
use crate::{DType, TensorError};

/// 256 values, 16 sub-blocks of 16: `d · scale · (code − 32)`.
///
/// Half n (128 values) uses ql[64n..], qh[32n..], scales[8n..]. Its value 32·p + l (p 0..4, l 0..32) takes a
/// nibble of ql[l + 32·(p mod 2)], the low one for p < 2, and bits 2p..2p+2 of qh[l].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q6K {
    /// Low four bits of the codes.
    pub ql: [u8; 128],
    /// High two bits of the codes.
    pub qh: [u8; 64],
    /// One i8 scale per sub-block.
    pub scales: [u8; 16],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

impl Block for Q6K {
    const DTYPE: DType = DType::Q6K;
    const ELEMS: usize = 256;
}

impl Q6K {
    /// The codes of values 32·j up to 32·(j + 1).
    #[inline(always)]
    pub fn codes(&self, j: usize) -> [u8; 32] {
        let (half, p) = (j / 4, j % 4);
        let low: &[u8; 32] = &self.ql.as_chunks().0[2 * half + p % 2];
        let high: &[u8; 32] = &self.qh.as_chunks().0[half];
        std::array::from_fn(|l| low[l] >> (4 * (p / 2)) & 15 | (high[l] >> (2 * p) & 3) << 4)
    }
}

type Codes = Whole<-32, 31>;

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    decode_blocks(bytes, out, |block: &Q6K, out: &mut [f32; Q6K::ELEMS]| {
        let d = read_f16(block.d);
        for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = block.codes(j);
            let halves = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
            for (half, (out, codes)) in halves.enumerate() {
                let scale = d * f32::from(block.scales[2 * j + half] as i8);
                for (o, &code) in out.iter_mut().zip(codes) {
                    *o = scale * (f32::from(code) - 32.0);
                }
            }
        }
    });
}

pub(crate) fn encode(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<(), TensorError> {
    encode_blocks(values, importance, out, |part: Part<{ Q6K::ELEMS }>| {
        let parts = part.split::<16, 16>();
        let best = nested::<Codes, 16, 16>(&parts, (-128.0, 127.0))?;
        let mut block = Q6K { d: f16_bytes(best.d), ..Q6K::zeroed() };
        for (i, (part, &sub)) in parts.iter().zip(&best.subs).enumerate() {
            let inv = inverse(best.d * f32::from(sub));
            let (half, p) = (i / 8, i % 8 / 2);
            for (k, q) in codes::<Codes, _>(part.x, inv, 32.0).into_iter().enumerate() {
                let l = i % 2 * 16 + k;
                block.ql[64 * half + l + 32 * (p % 2)] |= (q & 15) << (4 * (p / 2));
                block.qh[32 * half + l] |= (q >> 4) << (2 * p);
            }
            block.scales[i] = sub as u8;
        }
        Some(block)
    })
}
