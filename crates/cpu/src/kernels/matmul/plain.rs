//! f32, f16 and bf16 weights with f32 activations.
//!
//! Panel: `[column][16 rows]` in the stored type. `acc = fma(w, x, acc)`, column after column.
//! Bytes: the stored ones. FLOPs: 2 per weight and row.

use std::marker::PhantomData;

use super::format::{Format, PANEL_ROWS};
use crate::shared::View;
use crate::simd::Simd;

/// A float type weights are stored in.
pub(crate) trait Stored: Send + Sync + 'static {
    const BYTES: usize;
    /// Sixteen values, widened.
    fn load<S: Simd>(bytes: &[u8]) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl Stored for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn load<S: Simd>(bytes: &[u8]) -> S::F {
        S::load_le(bytes.first_chunk().expect("sixteen values"))
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(bytes: &[u8]) -> S::F {
        S::load_f16(bytes.first_chunk().expect("sixteen values"))
    }
}

impl Stored for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(bytes: &[u8]) -> S::F {
        S::load_bf16(bytes.first_chunk().expect("sixteen values"))
    }
}

/// The format of a float type.
pub(crate) struct PlainFormat<T>(PhantomData<T>);

impl<T: Stored> Format for PlainFormat<T> {
    type Row<'a> = &'a [f32];

    const PREPARED: usize = 0;

    fn panel_bytes(cols: usize) -> usize {
        (cols * PANEL_ROWS * T::BYTES).next_multiple_of(64)
    }

    fn pack(panel: &mut [u8], _cols: usize, lane: usize, row: &[u8]) {
        for (value, out) in row.chunks_exact(T::BYTES).zip(panel.chunks_exact_mut(PANEL_ROWS * T::BYTES)) {
            out[lane * T::BYTES..][..T::BYTES].copy_from_slice(value);
        }
    }

    #[inline(always)]
    fn prepare<S: Simd>(_x: &View, _row: usize, _prepared: &mut [i32]) {}

    #[inline(always)]
    fn row<'a>(x: &View<'a>, row: usize, _prepared: &'a [i32]) -> &'a [f32] {
        x.row(row)
    }

    #[inline(always)]
    fn rows<S: Simd, const R: usize>(panel: &[u8], cols: usize, x: &[&[f32]; R]) -> [S::F; R] {
        let x = x.map(|x| &x[..cols]);
        let mut acc = [S::zero(); R];
        for (k, w) in panel.chunks_exact(PANEL_ROWS * T::BYTES).take(cols).enumerate() {
            let w = T::load::<S>(w);
            for r in 0..R {
                acc[r] = S::fma(w, S::splat(x[r][k]), acc[r]);
            }
        }
        acc
    }

    #[inline(always)]
    fn four<S: Simd>(panels: [&[u8]; 4], cols: usize, x: &[f32]) -> [S::F; 4] {
        let width = PANEL_ROWS * T::BYTES;
        let panels = panels.map(|p| &p[..cols * width]);
        let mut acc = [S::zero(); 4];
        for (k, &x) in x[..cols].iter().enumerate() {
            let x = S::splat(x);
            for (acc, panel) in acc.iter_mut().zip(panels) {
                *acc = S::fma(T::load::<S>(&panel[k * width..][..width]), x, *acc);
            }
        }
        acc
    }
}
