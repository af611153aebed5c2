//! Vector operations in WebAssembly's 128-bit vectors: four registers per vector.
//!
//! There is no fused product and sum that rounds the same everywhere, so it is computed in f64, where the product of
//! two f32 is exact: see `fma`.
#![allow(unsafe_code)]

use std::arch::wasm32::*;

use half::f16;

use super::{LANES, Simd, look_up_bytes};
use crate::isa::Vectorized;

/// Four 128-bit registers: lanes 0..4, 4..8, 8..12 and 12..16.
#[derive(Clone, Copy)]
pub(crate) struct Simd128;

type V = [v128; 4];

/// The i-th sixteen bytes.
#[inline(always)]
fn read<const N: usize>(x: &[u8; N], i: usize) -> v128 {
    assert!(16 * i + 16 <= N);
    // SAFETY: the range was checked, and any address may be read from.
    unsafe { v128_load(x.as_ptr().add(16 * i).cast()) }
}

#[inline(always)]
fn write<const N: usize>(v: v128, out: &mut [u8; N], i: usize) {
    assert!(16 * i + 16 <= N);
    // SAFETY: the range was checked, and any address may be written to.
    unsafe { v128_store(out.as_mut_ptr().add(16 * i).cast(), v) }
}

/// An intrinsic on each register; intrinsics are no closures.
macro_rules! each {
    ($f:path, $a:expr) => {{
        let a = $a;
        [$f(a[0]), $f(a[1]), $f(a[2]), $f(a[3])]
    }};
    ($f:path, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        [$f(a[0], b[0]), $f(a[1], b[1]), $f(a[2], b[2]), $f(a[3], b[3])]
    }};
}

/// Sixteen lanes from two registers of narrower ones: the low and the high half of each, widened.
macro_rules! widen {
    ($halves:expr, $low:path, $high:path) => {{
        let halves = $halves;
        [$low(halves[0]), $high(halves[0]), $low(halves[1]), $high(halves[1])]
    }};
}

#[inline(always)]
fn map(v: V, f: impl Fn(v128) -> v128) -> V {
    v.map(f)
}

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(v128, v128) -> v128) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn lanes(v: V) -> [i32; LANES] {
    let mut out = [0; LANES];
    Simd128::store_bytes(v, bytemuck::cast_mut(&mut out));
    out
}

/// The low bits of an f64 that an f32 does not have, and the pattern of a tie among them.
const LOST_BITS: i64 = 0x1fff_ffff;
const TIE: i64 = 0x1000_0000;

/// Lanes of f64 whose rounding to f32 may be wrong if they have been rounded before: a tie, or less than normal.
#[inline(always)]
fn may_round_twice(sum: v128) -> v128 {
    let tie = i64x2_eq(v128_and(sum, i64x2_splat(LOST_BITS)), i64x2_splat(TIE));
    let small = f64x2_lt(f64x2_abs(sum), f64x2_splat(f64::from(f32::MIN_POSITIVE)));
    v128_or(tie, v128_andnot(small, f64x2_eq(sum, f64x2_splat(0.0))))
}

/// `sum`, which is `product + addend` rounded, with the last bit set where anything was rounded away: to round that to
/// f32 gives what rounding once gives.
#[inline(never)]
fn round_to_odd(product: v128, addend: v128, sum: v128) -> v128 {
    let part = f64x2_sub(sum, product);
    let lost = f64x2_add(f64x2_sub(product, f64x2_sub(sum, part)), f64x2_sub(addend, part));
    let zero = f64x2_splat(0.0);
    // Neither for NaN.
    let is_inexact = v128_or(f64x2_gt(lost, zero), f64x2_lt(lost, zero));
    let is_even = i64x2_eq(v128_and(sum, i64x2_splat(1)), i64x2_splat(0));
    // Away from zero if what was lost has the sum's sign.
    let is_away = i64x2_ge(v128_xor(lost, sum), i64x2_splat(0));
    let step = v128_bitselect(i64x2_splat(1), i64x2_splat(-1), is_away);
    i64x2_add(sum, v128_and(step, v128_and(is_inexact, is_even)))
}

#[inline(always)]
fn fma(a: v128, b: v128, c: v128) -> v128 {
    let low = |v| f64x2_promote_low_f32x4(v);
    let high = |v| f64x2_promote_low_f32x4(i64x2_shuffle::<1, 1>(v, v));
    let products = [f64x2_mul(low(a), low(b)), f64x2_mul(high(a), high(b))];
    let addends = [low(c), high(c)];
    let mut sums = [f64x2_add(products[0], addends[0]), f64x2_add(products[1], addends[1])];
    if v128_any_true(v128_or(may_round_twice(sums[0]), may_round_twice(sums[1]))) {
        sums = std::array::from_fn(|i| round_to_odd(products[i], addends[i], sums[i]));
    }
    i64x2_shuffle::<0, 2>(f32x4_demote_f64x2_zero(sums[0]), f32x4_demote_f64x2_zero(sums[1]))
}

/// Four f16 in the low halves of i32 lanes.
#[inline(always)]
fn widen_f16(v: v128) -> v128 {
    let size = v128_and(v, i32x4_splat(0x7fff));
    let sign = i32x4_shl(v128_and(v, i32x4_splat(0x8000)), 16);
    let bits = i32x4_shl(size, 13);
    // The exponent's bias differs by 112; the product also makes subnormal numbers normal.
    let finite = f32x4_mul(bits, f32x4_splat(f32::from_bits((127 + 112) << 23)));
    let is_nan = i32x4_gt(size, i32x4_splat(0x7c00));
    let quiet = v128_and(is_nan, i32x4_splat(0x0040_0000));
    let other = v128_or(v128_or(bits, i32x4_splat(0x7f80_0000)), quiet);
    v128_or(sign, v128_bitselect(finite, other, i32x4_lt(size, i32x4_splat(0x7c00))))
}

/// Products of unsigned codes and four words, summed in each lane.
#[inline(always)]
fn dot(acc: v128, codes: v128, x: v128) -> v128 {
    let low = i32x4_dot_i16x8(u16x8_extend_low_u8x16(codes), x);
    let high = i32x4_dot_i16x8(u16x8_extend_high_u8x16(codes), x);
    let pairs = i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_shuffle::<1, 3, 5, 7>(low, high));
    i32x4_add(acc, pairs)
}

impl Simd for Simd128 {
    type F = V;
    type I = V;
    type B = V;

    const ROWS: usize = 4;
    const WIDE_ZERO: i32 = 128;
    const CODE_ZERO: i32 = 128;

    #[inline(never)]
    fn call<V: Vectorized>(what: V) -> V::Output {
        what.run::<Self>()
    }

    #[inline(always)]
    fn splat(v: f32) -> V {
        [f32x4_splat(v); 4]
    }
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> V {
        Self::load_bytes(bytemuck::cast_ref(x))
    }
    #[inline(always)]
    fn store(v: V, out: &mut [f32; LANES]) {
        Self::store_bytes(v, bytemuck::cast_mut(out));
    }
    #[inline(always)]
    fn load_le(x: &[u8; 4 * LANES]) -> V {
        Self::load_bytes(x)
    }
    #[inline(always)]
    fn store_le(v: V, out: &mut [u8; 4 * LANES]) {
        Self::store_bytes(v, out);
    }
    #[inline(always)]
    fn load_f16(x: &[u8; 2 * LANES]) -> V {
        let halves = [read(x, 0), read(x, 1)];
        widen!(halves, u32x4_extend_low_u16x8, u32x4_extend_high_u16x8).map(widen_f16)
    }
    #[inline(always)]
    fn load_bf16(x: &[u8; 2 * LANES]) -> V {
        let halves = [read(x, 0), read(x, 1)];
        map(widen!(halves, u32x4_extend_low_u16x8, u32x4_extend_high_u16x8), |v| i32x4_shl(v, 16))
    }
    #[inline(always)]
    fn store_f16(v: V, out: &mut [u8; 2 * LANES]) {
        for (o, bits) in out.as_chunks_mut::<2>().0.iter_mut().zip(lanes(v)) {
            *o = f16::from_f32(f32::from_bits(bits.cast_unsigned())).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_u8(x: &[u8; LANES]) -> V {
        Self::to_float(Self::load_u8_int(x))
    }
    #[inline(always)]
    fn load_i8(x: &[u8; LANES]) -> V {
        let bytes = read(x, 0);
        let halves = [i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes)];
        Self::to_float(widen!(halves, i32x4_extend_low_i16x8, i32x4_extend_high_i16x8))
    }
    #[inline(always)]
    fn load_u8_int(x: &[u8; LANES]) -> V {
        let bytes = read(x, 0);
        let halves = [u16x8_extend_low_u8x16(bytes), u16x8_extend_high_u8x16(bytes)];
        widen!(halves, u32x4_extend_low_u16x8, u32x4_extend_high_u16x8)
    }

    #[inline(always)]
    fn add(a: V, b: V) -> V {
        each!(f32x4_add, a, b)
    }
    #[inline(always)]
    fn sub(a: V, b: V) -> V {
        each!(f32x4_sub, a, b)
    }
    #[inline(always)]
    fn mul(a: V, b: V) -> V {
        each!(f32x4_mul, a, b)
    }
    #[inline(always)]
    fn div(a: V, b: V) -> V {
        each!(f32x4_div, a, b)
    }
    #[inline(always)]
    fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| fma(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn max(a: V, b: V) -> V {
        // `pmax(x, y)` is `x < y ? y : x`.
        each!(f32x4_pmax, b, a)
    }
    #[inline(always)]
    fn min(a: V, b: V) -> V {
        each!(f32x4_pmin, b, a)
    }
    #[inline(always)]
    fn round(v: V) -> V {
        each!(f32x4_nearest, v)
    }
    #[inline(always)]
    fn select_gt(a: V, b: V, x: V, y: V) -> V {
        std::array::from_fn(|i| v128_bitselect(x[i], y[i], f32x4_gt(a[i], b[i])))
    }
    #[inline(always)]
    fn first(n: usize, a: V, b: V) -> V {
        let n = i32x4_splat(n.min(LANES) as i32);
        std::array::from_fn(|i| {
            let start = 4 * i as i32;
            let index = i32x4(start, start + 1, start + 2, start + 3);
            v128_bitselect(a[i], b[i], i32x4_lt(index, n))
        })
    }
    #[inline(always)]
    fn look_up(table: &[f32; LANES], index: V) -> V {
        let values = lanes(index).map(|i| table[i as usize & 15]);
        Self::load(&values)
    }
    #[inline(always)]
    fn lane0(v: V) -> f32 {
        f32x4_extract_lane::<0>(v[0])
    }
    #[inline(always)]
    fn swap_pairs(v: V) -> V {
        map(v, |v| i32x4_shuffle::<1, 0, 3, 2>(v, v))
    }

    #[inline(always)]
    fn isplat(v: i32) -> V {
        [i32x4_splat(v); 4]
    }
    #[inline(always)]
    fn iadd(a: V, b: V) -> V {
        each!(i32x4_add, a, b)
    }
    #[inline(always)]
    fn isub(a: V, b: V) -> V {
        each!(i32x4_sub, a, b)
    }
    #[inline(always)]
    fn imul(a: V, b: V) -> V {
        each!(i32x4_mul, a, b)
    }
    #[inline(always)]
    fn iand(a: V, b: V) -> V {
        each!(v128_and, a, b)
    }
    #[inline(always)]
    fn ixor(a: V, b: V) -> V {
        each!(v128_xor, a, b)
    }
    #[inline(always)]
    fn ishl<const N: u32>(v: V) -> V {
        map(v, |v| i32x4_shl(v, N))
    }
    #[inline(always)]
    fn ishr<const N: u32>(v: V) -> V {
        map(v, |v| u32x4_shr(v, N))
    }
    #[inline(always)]
    fn isar<const N: u32>(v: V) -> V {
        map(v, |v| i32x4_shr(v, N))
    }
    #[inline(always)]
    fn to_int(v: V) -> V {
        map(v, |v| i32x4_trunc_sat_f32x4(f32x4_nearest(v)))
    }
    #[inline(always)]
    fn to_float(v: V) -> V {
        each!(f32x4_convert_i32x4, v)
    }
    #[inline(always)]
    fn bits(v: V) -> V {
        v
    }
    #[inline(always)]
    fn from_bits(v: V) -> V {
        v
    }
    #[inline(always)]
    fn store_i8(v: V, out: &mut [u8; LANES]) {
        let halves = [i16x8_narrow_i32x4(v[0], v[1]), i16x8_narrow_i32x4(v[2], v[3])];
        write(i8x16_narrow_i16x8(halves[0], halves[1]), out, 0);
    }
    #[inline(always)]
    fn store_u16(v: V, out: &mut [u8; 2 * LANES]) {
        write(u16x8_narrow_i32x4(v[0], v[1]), out, 0);
        write(u16x8_narrow_i32x4(v[2], v[3]), out, 1);
    }

    #[inline(always)]
    fn load_bytes(x: &[u8; 4 * LANES]) -> V {
        std::array::from_fn(|i| read(x, i))
    }
    #[inline(always)]
    fn store_bytes(v: V, out: &mut [u8; 4 * LANES]) {
        v.into_iter().enumerate().for_each(|(i, v)| write(v, out, i));
    }
    #[inline(always)]
    fn bsplat(v: u8) -> V {
        [u8x16_splat(v); 4]
    }
    #[inline(always)]
    fn wsplat(v: u16) -> V {
        [u16x8_splat(v); 4]
    }
    #[inline(always)]
    fn badd(a: V, b: V) -> V {
        each!(u8x16_add, a, b)
    }
    #[inline(always)]
    fn band(a: V, b: V) -> V {
        each!(v128_and, a, b)
    }
    #[inline(always)]
    fn bor(a: V, b: V) -> V {
        each!(v128_or, a, b)
    }
    #[inline(always)]
    fn bxor(a: V, b: V) -> V {
        each!(v128_xor, a, b)
    }
    #[inline(always)]
    fn bshl<const N: u32>(v: V) -> V {
        map(v, |v| u16x8_shl(v, N))
    }
    #[inline(always)]
    fn bshr<const N: u32>(v: V) -> V {
        map(v, |v| u16x8_shr(v, N))
    }
    #[inline(always)]
    fn blook_up(table: &[u8; LANES], index: V) -> V {
        let table = read(table, 0);
        map(index, |index| u8x16_swizzle(table, index))
    }
    #[inline(always)]
    fn blook_up_wide(table: &[u16; 256], index: V) -> (V, V) {
        let mut bytes = [0; 4 * LANES];
        Self::store_bytes(index, &mut bytes);
        let [low, high] = look_up_bytes(table, &bytes);
        (Self::load_bytes(&low), Self::load_bytes(&high))
    }
    #[inline(always)]
    fn dot(acc: V, codes: V, x: i32) -> V {
        let x = i16x8_extend_low_i8x16(i32x4_splat(x));
        map2(acc, codes, |acc, codes| dot(acc, codes, x))
    }
    #[inline(always)]
    fn dot_wide(acc: V, codes: V, x: i32) -> V {
        Self::dot(acc, codes, x)
    }

    #[inline(always)]
    fn lower_exponents(from: V, steps: V) -> V {
        map2(from, steps, |from, steps| {
            let steps = v128_and(steps, u16x8_splat(15));
            let lower = u16x8_sub_sat(from, u16x8_shl(steps, 7));
            v128_andnot(lower, u16x8_eq(steps, u16x8_splat(15)))
        })
    }
    #[inline(always)]
    fn widen_pairs(pairs: V) -> (V, V) {
        let odd = i32x4_splat(0xffff_0000_u32.cast_signed());
        (map(pairs, |v| i32x4_shl(v, 16)), map(pairs, |v| v128_and(v, odd)))
    }

    #[inline(always)]
    fn any_gt(a: V, b: V) -> bool {
        let [p, q, r, s] = each!(f32x4_gt, a, b);
        v128_any_true(v128_or(v128_or(p, q), v128_or(r, s)))
    }
}
