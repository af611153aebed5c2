//! `quantize`: f32 rows to 8-bit rows. Per 32 values `scale = amax/127`, `code = round(x·127/amax)`.
//!
//! Layout: codes, then f32 scales, then i32 sums of codes. An item is a row. Bytes: 4 in and 1.25 out
//! per value.
#![allow(unsafe_code)]

use mambo_kernel::{Operand, Q8_BLOCK};

use super::{Cx, Scratch, Work};
use crate::simd::{LANES, Simd};

pub(crate) struct Quantize {
    pub x: Operand,
    pub out: Operand,
}

#[inline(always)]
fn abs<S: Simd>(v: S::F) -> S::F {
    S::from_bits(S::iand(S::bits(v), S::isplat(0x7fff_ffff)))
}

/// One block; returns scale and sum.
#[inline(always)]
fn block<S: Simd>(x: &[f32], codes: &mut [u8; Q8_BLOCK]) -> (f32, i32) {
    let (low, high) = x.split_at(x.len().min(LANES));
    let v = [S::load_part(low), S::load_part(high)];
    let amax = S::max_lane(S::max(abs::<S>(v[0]), abs::<S>(v[1])));
    let inverse = S::splat(if amax > 0.0 { 127.0 / amax } else { 0.0 });
    let (a, b) = codes.split_at_mut(LANES);
    for (v, out) in v.into_iter().zip([a, b]) {
        // The bound comes second: NaN and what is beyond the range end on it.
        let code = S::max(S::mul(v, inverse), S::splat(-127.0));
        let code = S::to_int(S::min(code, S::splat(127.0)));
        S::store_i8(code, out.first_chunk_mut().expect("half a block"));
    }
    (amax / 127.0, codes.iter().map(|&c| i32::from(c as i8)).sum())
}

impl Work for Quantize {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, _: &mut Scratch) {
        let (x, out) = (cx.view(&self.x), cx.view(&self.out));
        let cols = x.cols();
        let blocks = cols.div_ceil(Q8_BLOCK);
        while let Some(row) = cx.next(0, x.rows()) {
            let values = x.row(row);
            // SAFETY: a row belongs to one item.
            let bytes = unsafe { out.q8_row_mut(row) };
            let (codes, rest) = bytes.split_at_mut(cols);
            let (scales, sums) = rest.split_at_mut(blocks * 4);
            for (b, values) in values.chunks(Q8_BLOCK).enumerate() {
                let mut block_codes = [0; Q8_BLOCK];
                let (scale, sum) = block::<S>(values, &mut block_codes);
                codes[b * Q8_BLOCK..][..values.len()].copy_from_slice(&block_codes[..values.len()]);
                scales[b * 4..][..4].copy_from_slice(&scale.to_le_bytes());
                sums[b * 4..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}
