//! Vector operations in plain Rust: runs everywhere and defines the results the others must match.
//!
//! On x86-64 these are for CPUs of before 2013 and for tests. Without vectors for them, long operations would be most of
//! the machine code of this crate and of the time to compile it, so there they are functions.
#![allow(unsafe_code)]

use half::{bf16, f16};

use super::{LANES, Simd, look_up_bytes};
use crate::isa::{InstructionSets, Vectorized};

/// Arrays of sixteen elements.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map2<T: Copy, U>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn pair(x: &[u8], i: usize) -> [u8; 2] {
    [x[2 * i], x[2 * i + 1]]
}

#[inline(always)]
fn shift16(v: [u8; 64], f: impl Fn(u16) -> u16) -> [u8; 64] {
    let mut out = [0; 64];
    for i in 0..32 {
        let bytes = f(u16::from_le_bytes(pair(&v, i))).to_le_bytes();
        out[2 * i..2 * i + 2].copy_from_slice(&bytes);
    }
    out
}

/// Adds products to `c`, rounded once.
#[inline(always)]
fn add_products(c: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
        *c = a.mul_add(*b, *c);
    }
}

/// The same on a CPU that has instructions for it, which without are calls.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx,fma")]
fn add_products_fma(c: &mut [f32; LANES], a: &[f32; LANES], b: &[f32; LANES]) {
    add_products(c, a, b);
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 4 * LANES];

    const ROWS: usize = 4;
    const WIDE_ZERO: i32 = 128;
    const CODE_ZERO: i32 = 128;

    #[inline(always)]
    fn call<V: Vectorized>(what: V) -> V::Output {
        V::Home::portable(what)
    }

    #[inline(always)]
    fn splat(v: f32) -> Self::F {
        [v; LANES]
    }
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self::F {
        *x
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn load_le(x: &[u8; 4 * LANES]) -> Self::F {
        std::array::from_fn(|i| f32::from_le_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]))
    }
    #[inline(always)]
    fn store_le(v: Self::F, out: &mut [u8; 4 * LANES]) {
        for (o, v) in out.as_chunks_mut().0.iter_mut().zip(v) {
            *o = v.to_le_bytes();
        }
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn load_f16(x: &[u8; 2 * LANES]) -> Self::F {
        std::array::from_fn(|i| f16::from_le_bytes(pair(x, i)).to_f32())
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn load_bf16(x: &[u8; 2 * LANES]) -> Self::F {
        std::array::from_fn(|i| bf16::from_le_bytes(pair(x, i)).to_f32())
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn store_f16(v: Self::F, out: &mut [u8; 2 * LANES]) {
        for (o, v) in out.as_chunks_mut::<2>().0.iter_mut().zip(v) {
            *o = f16::from_f32(v).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_u8(x: &[u8; LANES]) -> Self::F {
        x.map(f32::from)
    }
    #[inline(always)]
    fn load_i8(x: &[u8; LANES]) -> Self::F {
        x.map(|b| f32::from(b as i8))
    }

    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| a / b)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn fma(a: Self::F, b: Self::F, mut c: Self::F) -> Self::F {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the CPU has both.
            unsafe { add_products_fma(&mut c, &a, &b) };
            return c;
        }
        add_products(&mut c, &a, &b);
        c
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn round(v: Self::F) -> Self::F {
        v.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] > b[i] { x[i] } else { y[i] })
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn first(n: usize, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < n { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn load_u8_int(x: &[u8; LANES]) -> Self::I {
        x.map(i32::from)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn look_up(table: &[f32; LANES], index: Self::I) -> Self::F {
        index.map(|i| table[i as usize & 15])
    }
    #[inline(always)]
    fn lane0(v: Self::F) -> f32 {
        v[0]
    }

    #[inline(always)]
    fn swap_pairs(v: Self::F) -> Self::F {
        std::array::from_fn(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn isplat(v: i32) -> Self::I {
        [v; LANES]
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        map2(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        map2(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn imul(a: Self::I, b: Self::I) -> Self::I {
        map2(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    fn ixor(a: Self::I, b: Self::I) -> Self::I {
        map2(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn iand(a: Self::I, b: Self::I) -> Self::I {
        map2(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn ishl<const N: u32>(v: Self::I) -> Self::I {
        v.map(|v| v << N)
    }
    #[inline(always)]
    fn ishr<const N: u32>(v: Self::I) -> Self::I {
        v.map(|v| (v as u32 >> N) as i32)
    }
    #[inline(always)]
    fn isar<const N: u32>(v: Self::I) -> Self::I {
        v.map(|v| v >> N)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn to_int(v: Self::F) -> Self::I {
        v.map(|v| v.round_ties_even() as i32)
    }
    #[inline(always)]
    fn to_float(v: Self::I) -> Self::F {
        v.map(|v| v as f32)
    }
    #[inline(always)]
    fn bits(v: Self::F) -> Self::I {
        v.map(|v| v.to_bits() as i32)
    }
    #[inline(always)]
    fn from_bits(v: Self::I) -> Self::F {
        v.map(|v| f32::from_bits(v as u32))
    }
    #[inline(always)]
    fn store_i8(v: Self::I, out: &mut [u8; LANES]) {
        *out = v.map(|v| v as u8);
    }
    #[inline(always)]
    fn store_u16(v: Self::I, out: &mut [u8; 2 * LANES]) {
        for (o, v) in out.as_chunks_mut().0.iter_mut().zip(v) {
            *o = (v as u16).to_le_bytes();
        }
    }

    #[inline(always)]
    fn load_bytes(x: &[u8; 4 * LANES]) -> Self::B {
        *x
    }
    #[inline(always)]
    fn store_bytes(v: Self::B, out: &mut [u8; 4 * LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn badd(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn bsplat(v: u8) -> Self::B {
        [v; 64]
    }
    #[inline(always)]
    fn band(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn bor(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn bxor(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    fn bshl<const N: u32>(v: Self::B) -> Self::B {
        shift16(v, |v| v << N)
    }
    #[inline(always)]
    fn bshr<const N: u32>(v: Self::B) -> Self::B {
        shift16(v, |v| v >> N)
    }
    #[inline(always)]
    fn wsplat(v: u16) -> Self::B {
        shift16([0; 64], |_| v)
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn lower_exponents(from: Self::B, steps: Self::B) -> Self::B {
        let mut out = [0; 64];
        for i in 0..32 {
            let steps = u16::from(steps[2 * i] & 15);
            let lower = u16::from_le_bytes(pair(&from, i)).saturating_sub(steps << 7);
            let lower = if steps == 15 { 0 } else { lower };
            out[2 * i..2 * i + 2].copy_from_slice(&lower.to_le_bytes());
        }
        out
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn widen_pairs(pairs: Self::B) -> (Self::F, Self::F) {
        let half = |i: usize| f32::from_bits(u32::from(u16::from_le_bytes(pair(&pairs, i))) << 16);
        (std::array::from_fn(|i| half(2 * i)), std::array::from_fn(|i| half(2 * i + 1)))
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn blook_up(table: &[u8; LANES], index: Self::B) -> Self::B {
        index.map(|i| table[usize::from(i & 15)])
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn blook_up_wide(table: &[u16; 256], index: Self::B) -> (Self::B, Self::B) {
        look_up_bytes(table, &index).into()
    }
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    #[cfg_attr(not(target_arch = "x86_64"), inline(always))]
    fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        let x = x.to_ne_bytes().map(|x| i32::from(x as i8));
        std::array::from_fn(|r| (0..4).fold(acc[r], |acc, b| acc + i32::from(codes[4 * r + b]) * x[b]))
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        Self::dot(acc, codes, x)
    }
}
