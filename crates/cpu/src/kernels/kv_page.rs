//! One head of a KV page: rows are rounded into it, and the whole of it is widened.
//!
//! Keys are codes `[channel][position]` and scales `[block][position]`, values are codes `[position][channel]` and
//! scales `[position][block]`.

use mambo_kernel::rounding::KV_BLOCK;
use mambo_kernel::{KvElem, PAGE_TOKENS};

use crate::simd::{LANES, Simd, part, part_mut, vectors};
use crate::stored::{Bf16, E4m3, F16, F32, Stored, store_bf16, store_e4m3, store_q8};

/// How a layer stores its keys or its values.
#[derive(Clone, Copy)]
pub(super) struct HeadFormat {
    pub elem: KvElem,
    /// Scale of 8-bit floats.
    pub scale: f32,
    pub head_dim: usize,
}

/// Bytes of a block of the widest type.
type BlockBytes = [u8; 4 * KV_BLOCK];

impl HeadFormat {
    /// Bytes of all codes; scales follow.
    #[inline(always)]
    fn codes(&self) -> usize {
        PAGE_TOKENS * self.head_dim * self.elem.code_bytes()
    }

    /// Stores one position as keys.
    #[inline(always)]
    pub fn store_keys<S: Simd>(&self, x: &[f32], at: usize, page: &mut [u8]) {
        let width = self.elem.code_bytes();
        let (codes, scales) = page.split_at_mut(self.codes());
        for (block, x) in x.chunks(KV_BLOCK).enumerate() {
            let mut bytes = [0; 4 * KV_BLOCK];
            let scale = self.narrow::<S>(x, &mut bytes);
            let columns = &mut codes[block * KV_BLOCK * PAGE_TOKENS * width..];
            match width {
                1 => scatter::<1>(&bytes, x.len(), at, columns),
                2 => scatter::<2>(&bytes, x.len(), at, columns),
                _ => scatter::<4>(&bytes, x.len(), at, columns),
            }
            if let Some(scale) = scale {
                scales[2 * (block * PAGE_TOKENS + at)..][..2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }

    /// Stores one position as values.
    #[inline(always)]
    pub fn store_values<S: Simd>(&self, x: &[f32], at: usize, page: &mut [u8]) {
        let width = self.elem.code_bytes();
        let (codes, scales) = page.split_at_mut(self.codes());
        let blocks = self.elem.scales(self.head_dim);
        for (block, x) in x.chunks(KV_BLOCK).enumerate() {
            let mut bytes = [0; 4 * KV_BLOCK];
            let scale = self.narrow::<S>(x, &mut bytes);
            let start = (at * self.head_dim + block * KV_BLOCK) * width;
            codes[start..][..x.len() * width].copy_from_slice(&bytes[..x.len() * width]);
            if let Some(scale) = scale {
                scales[2 * (at * blocks + block)..][..2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }

    /// Rounds up to 32 values; returns their scale if the type has one.
    #[inline(always)]
    fn narrow<S: Simd>(&self, x: &[f32], out: &mut BlockBytes) -> Option<u16> {
        match self.elem {
            KvElem::F32 => {
                for (x, out) in x.iter().zip(out.as_chunks_mut().0) {
                    *out = x.to_le_bytes();
                }
            }
            KvElem::F16 => {
                for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(vectors(x.len())) {
                    S::store_f16(S::load_part(part(x, i)), out);
                }
            }
            KvElem::BF16 => {
                for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(vectors(x.len())) {
                    store_bf16::<S>(S::load_part(part(x, i)), out);
                }
            }
            KvElem::F8 => {
                for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate().take(vectors(x.len())) {
                    store_e4m3::<S>(S::div(S::load_part(part(x, i)), S::splat(self.scale)), out);
                }
            }
            KvElem::Q8 => return Some(store_q8::<S>(x, out.first_chunk_mut().expect("a block"))),
        }
        None
    }

    /// Widens keys to `[channel][position]`.
    #[inline(always)]
    pub fn widen_keys<S: Simd>(&self, page: &[u8], out: &mut [f32]) {
        if self.elem != KvElem::Q8 {
            return self.widen_floats::<S>(page, out);
        }
        const BLOCK: usize = KV_BLOCK * PAGE_TOKENS;
        let (codes, scales) = page.split_at(self.codes());
        let blocks = codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK));
        for ((codes, out), scales) in blocks.zip(scales.as_chunks::<{ 2 * PAGE_TOKENS }>().0) {
            let scales = [Bf16::load::<S>(scales), Bf16::load::<S>(&scales[2 * LANES..])];
            let channels =
                codes.as_chunks::<PAGE_TOKENS>().0.iter().zip(out.as_chunks_mut::<PAGE_TOKENS>().0);
            for (codes, out) in channels {
                for (v, &scale) in scales.iter().enumerate() {
                    let codes = S::load_i8(codes[v * LANES..].first_chunk().expect("sixteen positions"));
                    S::store_part(S::mul(codes, scale), part_mut(out, v));
                }
            }
        }
    }

    /// Widens values to `[position][channel]`.
    #[inline(always)]
    pub fn widen_values<S: Simd>(&self, page: &[u8], out: &mut [f32]) {
        if self.elem != KvElem::Q8 {
            return self.widen_floats::<S>(page, out);
        }
        let n = self.head_dim;
        let (codes, scales) = page.split_at(self.codes());
        let scales = scales.as_chunks::<2>().0.chunks_exact(self.elem.scales(n));
        for ((codes, scales), out) in codes.chunks_exact(n).zip(scales).zip(out.chunks_exact_mut(n)) {
            let blocks = codes.chunks(KV_BLOCK).zip(out.chunks_mut(KV_BLOCK));
            for ((codes, out), scale) in blocks.zip(scales) {
                // A bf16 is the upper half of an f32.
                let scale = S::splat(f32::from_bits(u32::from(u16::from_le_bytes(*scale)) << 16));
                let mut whole = [0; KV_BLOCK];
                let codes = match codes.first_chunk() {
                    Some(full) => full,
                    None => {
                        whole[..codes.len()].copy_from_slice(codes);
                        &whole
                    }
                };
                let [low, high] = codes.as_chunks::<LANES>().0 else { unreachable!("32 codes") };
                let (low, high) = (S::mul(S::load_i8(low), scale), S::mul(S::load_i8(high), scale));
                if let Some(full) = out.first_chunk_mut::<KV_BLOCK>() {
                    S::store_part(low, part_mut(full, 0));
                    S::store_part(high, part_mut(full, 1));
                } else {
                    let (first, second) = out.split_at_mut(out.len().min(LANES));
                    S::store_part(low, first);
                    S::store_part(high, second);
                }
            }
        }
    }

    /// Widens types without block scales: their layout is that of the result.
    #[inline(always)]
    fn widen_floats<S: Simd>(&self, page: &[u8], out: &mut [f32]) {
        match self.elem {
            KvElem::F32 => widen::<S, F32>(page, out),
            KvElem::F16 => widen::<S, F16>(page, out),
            KvElem::BF16 => widen::<S, Bf16>(page, out),
            KvElem::F8 => {
                let scale = S::splat(self.scale);
                for (codes, out) in page.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut().0) {
                    S::store(S::mul(E4m3::load::<S>(codes), scale), out);
                }
            }
            KvElem::Q8 => unreachable!("q8 has block scales"),
        }
    }
}

/// Stores a position's codes of `W` bytes, one per channel column.
#[inline(always)]
fn scatter<const W: usize>(bytes: &BlockBytes, count: usize, at: usize, columns: &mut [u8]) {
    let columns = columns.as_chunks_mut::<W>().0.chunks_exact_mut(PAGE_TOKENS);
    for (code, column) in bytes.as_chunks::<W>().0.iter().take(count).zip(columns) {
        column[at] = *code;
    }
}

/// Widens a head of a page; its length is a multiple of sixteen values.
#[inline(always)]
fn widen<S: Simd, T: Stored>(page: &[u8], out: &mut [f32]) {
    for (stored, out) in page.chunks_exact(LANES * T::BYTES).zip(out.as_chunks_mut().0) {
        S::store(T::load::<S>(stored), out);
    }
}
