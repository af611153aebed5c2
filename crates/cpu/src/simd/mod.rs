//! Sixteen lanes of f32 and i32, and sixteen groups of four bytes: the only vector operations that kernels use.
//!
//! Every operation acts on each lane separately and rounds as IEEE 754 specifies, so that all implementations give the
//! same bits. Kernels are generic over [`Simd`] and inlined into one function per instruction set, or a few where a part
//! is used in several places ([`Simd::call`]; see `kernels/mod.rs`). This module knows no op.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
mod portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

pub(crate) use math::{Math, square_sum};
pub(crate) use portable::Portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use simd128::Simd128;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

use crate::isa::Vectorized;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// One instruction set. Methods of the x86 types may only run if the CPU has the features; dispatch ensures that once
/// per call.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Whether machines with this instruction set may have tile registers.
    const HAS_TILES: bool = false;

    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixty-four bytes: lane r holds bytes 4r..4r+4.
    type B: Copy;

    /// Activation rows that a matmul keeps in registers at once: 8 or 4.
    const ROWS: usize;
    /// How much of a zero point of 128 [`Simd::dot_wide`] leaves to the caller: all of it (128) or nothing (0).
    const WIDE_ZERO: i32;
    /// Zero point of codes of up to seven bits when they are unpacked into memory: 128 if [`Simd::dot_wide`] costs no
    /// more than [`Simd::dot`], else 64.
    const CODE_ZERO: i32;

    /// Runs a part of a kernel as a function of its own, so that its code exists once however many places use it.
    fn call<V: Vectorized>(what: V) -> V::Output;

    fn splat(v: f32) -> Self::F;
    fn load(x: &[f32; LANES]) -> Self::F;
    fn store(v: Self::F, out: &mut [f32; LANES]);
    /// f32 from little-endian bytes.
    fn load_le(x: &[u8; 4 * LANES]) -> Self::F;
    /// f32 to little-endian bytes.
    fn store_le(v: Self::F, out: &mut [u8; 4 * LANES]);
    /// Widens f16, little-endian.
    fn load_f16(x: &[u8; 2 * LANES]) -> Self::F;
    /// Widens bf16, little-endian.
    fn load_bf16(x: &[u8; 2 * LANES]) -> Self::F;
    /// Narrows to f16, nearest even.
    fn store_f16(v: Self::F, out: &mut [u8; 2 * LANES]);
    fn load_u8(x: &[u8; LANES]) -> Self::F;
    fn load_i8(x: &[u8; LANES]) -> Self::F;
    fn load_u8_int(x: &[u8; LANES]) -> Self::I;

    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`, rounded once.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, so b if either is NaN.
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, so b if either is NaN.
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    fn round(v: Self::F) -> Self::F;
    /// `a > b ? x : y`.
    fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// The first `n` lanes from a, the others from b.
    fn first(n: usize, a: Self::F, b: Self::F) -> Self::F;
    /// The table value selected by the low four bits of each lane of `index`.
    fn look_up(table: &[f32; LANES], index: Self::I) -> Self::F;
    /// Lane 0.
    fn lane0(v: Self::F) -> f32;
    /// Lanes 2i and 2i + 1 exchanged.
    fn swap_pairs(v: Self::F) -> Self::F;

    fn isplat(v: i32) -> Self::I;
    fn iadd(a: Self::I, b: Self::I) -> Self::I;
    fn isub(a: Self::I, b: Self::I) -> Self::I;
    /// The low 32 bits of the product.
    fn imul(a: Self::I, b: Self::I) -> Self::I;
    fn iand(a: Self::I, b: Self::I) -> Self::I;
    fn ixor(a: Self::I, b: Self::I) -> Self::I;
    fn ishl<const N: u32>(v: Self::I) -> Self::I;
    /// Logical shift.
    fn ishr<const N: u32>(v: Self::I) -> Self::I;
    /// Arithmetic shift.
    fn isar<const N: u32>(v: Self::I) -> Self::I;
    /// Nearest i32; unspecified for values out of range.
    fn to_int(v: Self::F) -> Self::I;
    fn to_float(v: Self::I) -> Self::F;
    fn bits(v: Self::F) -> Self::I;
    fn from_bits(v: Self::I) -> Self::F;
    /// Narrows lanes in -128..=127.
    fn store_i8(v: Self::I, out: &mut [u8; LANES]);
    /// Narrows lanes in 0..=65535, little-endian.
    fn store_u16(v: Self::I, out: &mut [u8; 2 * LANES]);

    fn load_bytes(x: &[u8; 4 * LANES]) -> Self::B;
    fn store_bytes(v: Self::B, out: &mut [u8; 4 * LANES]);
    fn bsplat(v: u8) -> Self::B;
    /// The same value in every 16-bit word.
    fn wsplat(v: u16) -> Self::B;
    /// Sums modulo 256.
    fn badd(a: Self::B, b: Self::B) -> Self::B;
    fn band(a: Self::B, b: Self::B) -> Self::B;
    fn bor(a: Self::B, b: Self::B) -> Self::B;
    fn bxor(a: Self::B, b: Self::B) -> Self::B;
    /// Shifts 16-bit words: mask the result to bits that come from the same byte.
    fn bshl<const N: u32>(v: Self::B) -> Self::B;
    fn bshr<const N: u32>(v: Self::B) -> Self::B;
    /// The table byte selected by each byte of `index`; all of them are below 16.
    fn blook_up(table: &[u8; LANES], index: Self::B) -> Self::B;
    /// The low and the high byte of the table entry selected by each byte of `index`.
    fn blook_up_wide(table: &[u16; 256], index: Self::B) -> (Self::B, Self::B);
    /// `acc[r] + Σ_b codes[r][b]·x[b]`, codes unsigned below 128; x is four signed bytes in memory order, passed as
    /// a word because its broadcast then folds into the instruction.
    fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I;
    /// The same for codes up to 255, less `(128 − WIDE_ZERO)·Σ_b x[b]`; x above -128.
    fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I;

    /// In every 16-bit word: `from` minus 128 times the low four bits of `steps`, or zero if those are fifteen.
    fn lower_exponents(from: Self::B, steps: Self::B) -> Self::B;
    /// Widens the even and the odd elements of pairs of bf16.
    fn widen_pairs(pairs: Self::B) -> (Self::F, Self::F);

    /// Zero in every lane.
    #[inline(always)]
    fn zero() -> Self::F {
        Self::splat(0.0)
    }

    /// Up to sixteen values; zero beyond the end.
    #[inline(always)]
    fn load_part(x: &[f32]) -> Self::F {
        match x.first_chunk() {
            Some(full) => Self::load(full),
            None => {
                let mut lanes = [0.0; LANES];
                lanes[..x.len()].copy_from_slice(x);
                Self::load(&lanes)
            }
        }
    }

    /// Stores as many lanes as `out` takes.
    #[inline(always)]
    fn store_part(v: Self::F, out: &mut [f32]) {
        match out.first_chunk_mut() {
            Some(full) => Self::store(v, full),
            None => {
                let mut lanes = [0.0; LANES];
                Self::store(v, &mut lanes);
                let n = out.len();
                out.copy_from_slice(&lanes[..n]);
            }
        }
    }

    /// Sum of the lanes as a fixed tree: lanes 8 apart, then 4, 2, 1.
    #[inline(always)]
    fn sum(v: Self::F) -> f32 {
        let mut l = [0.0; LANES];
        Self::store(v, &mut l);
        let e: [f32; 8] = std::array::from_fn(|i| l[i] + l[i + 8]);
        let q: [f32; 4] = std::array::from_fn(|i| e[i] + e[i + 4]);
        (q[0] + q[2]) + (q[1] + q[3])
    }

    /// Sum of integer lanes.
    #[inline(always)]
    fn sum_int(v: Self::I) -> i32 {
        let mut l = [0.0; LANES];
        Self::store(Self::from_bits(v), &mut l);
        l.iter().fold(0i32, |sum, lane| sum.wrapping_add(lane.to_bits().cast_signed()))
    }

    /// Largest lane; NaN only if all lanes are.
    #[inline(always)]
    fn max_lane(v: Self::F) -> f32 {
        let mut l = [0.0; LANES];
        Self::store(v, &mut l);
        let e: [f32; 8] = std::array::from_fn(|i| l[i].max(l[i + 8]));
        let q: [f32; 4] = std::array::from_fn(|i| e[i].max(e[i + 4]));
        q[0].max(q[2]).max(q[1].max(q[3]))
    }

    /// Whether any lane of `a` is greater than the same lane of `b`.
    #[inline(always)]
    fn any_gt(a: Self::F, b: Self::F) -> bool {
        Self::max_lane(Self::select_gt(a, b, Self::splat(1.0), Self::zero())) > 0.0
    }

    /// Prefetches the cache line `ahead` bytes after the start of `x`, which need not exist, into L2, which can have
    /// more outstanding misses than L1.
    #[inline(always)]
    fn prefetch(_x: &[u8], _ahead: usize) {}

    /// The same into L1.
    #[inline(always)]
    fn prefetch_near(_x: &[u8], _ahead: usize) {}
}

/// [`Simd::blook_up_wide`] byte by byte.
#[inline(always)]
fn look_up_bytes(table: &[u16; 256], index: &[u8; 4 * LANES]) -> [[u8; 4 * LANES]; 2] {
    let mut out = [[0; 4 * LANES]; 2];
    for (i, &index) in index.iter().enumerate() {
        [out[0][i], out[1][i]] = table[usize::from(index)].to_le_bytes();
    }
    out
}

/// Vectors that cover `len` values.
#[inline(always)]
pub(crate) fn vectors(len: usize) -> usize {
    len.div_ceil(LANES)
}

/// The part of `x` that vector `i` covers.
#[inline(always)]
pub(crate) fn part(x: &[f32], i: usize) -> &[f32] {
    &x[i * LANES..x.len().min((i + 1) * LANES)]
}

/// The part of `x` that vector `i` covers, to write.
#[inline(always)]
pub(crate) fn part_mut(x: &mut [f32], i: usize) -> &mut [f32] {
    let end = x.len().min((i + 1) * LANES);
    &mut x[i * LANES..end]
}
