//! Vector operations in AVX2 with FMA and F16C: two registers per vector.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Simd, look_up_bytes};
use crate::isa::{InstructionSets, Vectorized};

/// Pairs of 256-bit registers: lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Calls intrinsics, which are inlined into a function that enables the features.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: `Avx2` methods are only reached through dispatch, which has checked the CPU; pointers
        // come from references to arrays of the size that is read or written.
        unsafe { $e }
    };
}

macro_rules! each {
    ($f:expr, $($v:expr),+) => {
        simd!([$f($($v[0]),+), $f($($v[1]),+)])
    };
}

/// Lane numbers, for masks.
const INDEX: [[i32; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]];
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    const ROWS: usize = 4;
    const WIDE_ZERO: i32 = 0;
    const CODE_ZERO: i32 = 64;

    #[inline(always)]
    fn call<V: Vectorized>(what: V) -> V::Output {
        // SAFETY: the caller runs on this set, see [`Simd`].
        unsafe { V::Home::avx2(what) }
    }

    #[inline(always)]
    fn splat(v: f32) -> Self::F {
        simd!([_mm256_set1_ps(v); 2])
    }
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self::F {
        simd!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))])
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; LANES]) {
        simd!({
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        })
    }
    #[inline(always)]
    fn load_le(x: &[u8; 4 * LANES]) -> Self::F {
        simd!([_mm256_loadu_ps(x.as_ptr().cast()), _mm256_loadu_ps(x.as_ptr().add(32).cast())])
    }
    #[inline(always)]
    fn store_le(v: Self::F, out: &mut [u8; 4 * LANES]) {
        simd!({
            _mm256_storeu_ps(out.as_mut_ptr().cast(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(32).cast(), v[1]);
        })
    }
    #[inline(always)]
    fn load_f16(x: &[u8; 2 * LANES]) -> Self::F {
        simd!([
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(16).cast()))
        ])
    }
    #[inline(always)]
    fn load_bf16(x: &[u8; 2 * LANES]) -> Self::F {
        simd!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        })
    }
    #[inline(always)]
    fn store_f16(v: Self::F, out: &mut [u8; 2 * LANES]) {
        simd!({
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                out.as_mut_ptr().add(16).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        })
    }
    #[inline(always)]
    fn load_u8(x: &[u8; LANES]) -> Self::F {
        simd!({
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_srli_si128::<8>(bytes);
            Self::to_float([_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(high)])
        })
    }
    #[inline(always)]
    fn load_i8(x: &[u8; LANES]) -> Self::F {
        simd!({
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            let high = _mm_srli_si128::<8>(bytes);
            Self::to_float([_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(high)])
        })
    }

    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        each!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn round(v: Self::F) -> Self::F {
        each!(_mm256_round_ps::<NEAREST>, v)
    }
    #[inline(always)]
    fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        let mask = each!(_mm256_cmp_ps::<_CMP_GT_OQ>, a, b);
        each!(_mm256_blendv_ps, y, x, mask)
    }
    #[inline(always)]
    fn first(n: usize, a: Self::F, b: Self::F) -> Self::F {
        simd!({
            let n = _mm256_set1_epi32(n.min(LANES) as i32);
            let low = _mm256_cmpgt_epi32(n, _mm256_loadu_si256(INDEX[0].as_ptr().cast()));
            let high = _mm256_cmpgt_epi32(n, _mm256_loadu_si256(INDEX[1].as_ptr().cast()));
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(b[1], a[1], _mm256_castsi256_ps(high)),
            ]
        })
    }
    #[inline(always)]
    fn load_u8_int(x: &[u8; LANES]) -> Self::I {
        simd!({
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
        })
    }
    #[inline(always)]
    fn look_up(table: &[f32; LANES], index: Self::I) -> Self::F {
        simd!({
            let (low, high) = (_mm256_loadu_ps(table.as_ptr()), _mm256_loadu_ps(table.as_ptr().add(8)));
            // A permutation reads three bits of the index; the fourth, moved to the sign, selects the half.
            let half = [_mm256_slli_epi32::<28>(index[0]), _mm256_slli_epi32::<28>(index[1])];
            let low = [_mm256_permutevar8x32_ps(low, index[0]), _mm256_permutevar8x32_ps(low, index[1])];
            let high = [_mm256_permutevar8x32_ps(high, index[0]), _mm256_permutevar8x32_ps(high, index[1])];
            [
                _mm256_blendv_ps(low[0], high[0], _mm256_castsi256_ps(half[0])),
                _mm256_blendv_ps(low[1], high[1], _mm256_castsi256_ps(half[1])),
            ]
        })
    }
    #[inline(always)]
    fn lane0(v: Self::F) -> f32 {
        simd!(_mm256_cvtss_f32(v[0]))
    }

    #[inline(always)]
    fn swap_pairs(v: Self::F) -> Self::F {
        each!(_mm256_permute_ps::<0b10_11_00_01>, v)
    }
    #[inline(always)]
    fn isplat(v: i32) -> Self::I {
        simd!([_mm256_set1_epi32(v); 2])
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        each!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        each!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn imul(a: Self::I, b: Self::I) -> Self::I {
        each!(_mm256_mullo_epi32, a, b)
    }
    #[inline(always)]
    fn ixor(a: Self::I, b: Self::I) -> Self::I {
        each!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    fn iand(a: Self::I, b: Self::I) -> Self::I {
        each!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn ishl<const N: u32>(v: Self::I) -> Self::I {
        let count = simd!(_mm_cvtsi32_si128(N as i32));
        simd!([_mm256_sll_epi32(v[0], count), _mm256_sll_epi32(v[1], count)])
    }
    #[inline(always)]
    fn ishr<const N: u32>(v: Self::I) -> Self::I {
        let count = simd!(_mm_cvtsi32_si128(N as i32));
        simd!([_mm256_srl_epi32(v[0], count), _mm256_srl_epi32(v[1], count)])
    }
    #[inline(always)]
    fn isar<const N: u32>(v: Self::I) -> Self::I {
        let count = simd!(_mm_cvtsi32_si128(N as i32));
        simd!([_mm256_sra_epi32(v[0], count), _mm256_sra_epi32(v[1], count)])
    }
    #[inline(always)]
    fn to_int(v: Self::F) -> Self::I {
        each!(_mm256_cvtps_epi32, v)
    }
    #[inline(always)]
    fn to_float(v: Self::I) -> Self::F {
        each!(_mm256_cvtepi32_ps, v)
    }
    #[inline(always)]
    fn bits(v: Self::F) -> Self::I {
        each!(_mm256_castps_si256, v)
    }
    #[inline(always)]
    fn from_bits(v: Self::I) -> Self::F {
        each!(_mm256_castsi256_ps, v)
    }
    #[inline(always)]
    fn store_i8(v: Self::I, out: &mut [u8; LANES]) {
        simd!({
            // Packing works within 128-bit halves; the permutation restores lane order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_packs_epi16(low, high));
        })
    }

    #[inline(always)]
    fn store_u16(v: Self::I, out: &mut [u8; 2 * LANES]) {
        simd!({
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(v[0], v[1]));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), halves);
        })
    }

    #[inline(always)]
    fn load_bytes(x: &[u8; 4 * LANES]) -> Self::B {
        simd!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(32).cast())])
    }
    #[inline(always)]
    fn store_bytes(v: Self::B, out: &mut [u8; 4 * LANES]) {
        simd!({
            _mm256_storeu_si256(out.as_mut_ptr().cast(), v[0]);
            _mm256_storeu_si256(out.as_mut_ptr().add(32).cast(), v[1]);
        })
    }
    #[inline(always)]
    fn badd(a: Self::B, b: Self::B) -> Self::B {
        each!(_mm256_add_epi8, a, b)
    }
    #[inline(always)]
    fn bsplat(v: u8) -> Self::B {
        simd!([_mm256_set1_epi8(v as i8); 2])
    }
    #[inline(always)]
    fn band(a: Self::B, b: Self::B) -> Self::B {
        each!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn bor(a: Self::B, b: Self::B) -> Self::B {
        each!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn bxor(a: Self::B, b: Self::B) -> Self::B {
        each!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    fn bshl<const N: u32>(v: Self::B) -> Self::B {
        let count = simd!(_mm_cvtsi32_si128(N as i32));
        simd!([_mm256_sll_epi16(v[0], count), _mm256_sll_epi16(v[1], count)])
    }
    #[inline(always)]
    fn bshr<const N: u32>(v: Self::B) -> Self::B {
        let count = simd!(_mm_cvtsi32_si128(N as i32));
        simd!([_mm256_srl_epi16(v[0], count), _mm256_srl_epi16(v[1], count)])
    }
    #[inline(always)]
    fn wsplat(v: u16) -> Self::B {
        simd!([_mm256_set1_epi16(v as i16); 2])
    }
    #[inline(always)]
    fn lower_exponents(from: Self::B, steps: Self::B) -> Self::B {
        let steps = Self::band(steps, Self::wsplat(15));
        let zero = each!(_mm256_cmpeq_epi16, steps, Self::wsplat(15));
        let lower = Self::bor(zero, Self::bshl::<7>(steps));
        each!(_mm256_subs_epu16, from, lower)
    }
    #[inline(always)]
    fn widen_pairs(pairs: Self::B) -> (Self::F, Self::F) {
        (Self::from_bits(Self::ishl::<16>(pairs)), Self::from_bits(Self::iand(pairs, Self::isplat(-65536))))
    }
    #[inline(always)]
    fn blook_up(table: &[u8; LANES], index: Self::B) -> Self::B {
        let table = simd!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        simd!([_mm256_shuffle_epi8(table, index[0]), _mm256_shuffle_epi8(table, index[1])])
    }
    #[inline(always)]
    fn blook_up_wide(table: &[u16; 256], index: Self::B) -> (Self::B, Self::B) {
        let mut bytes = [0; 4 * LANES];
        simd!({
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), index[0]);
            _mm256_storeu_si256(bytes.as_mut_ptr().add(32).cast(), index[1]);
        });
        let [low, high] = look_up_bytes(table, &bytes);
        (Self::load_bytes(&low), Self::load_bytes(&high))
    }
    #[inline(always)]
    fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        simd!({
            // Pair sums are at most 2·127·128, which fits in a 16-bit lane.
            let x = _mm256_set1_epi32(x);
            let ones = _mm256_set1_epi16(1);
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(codes[0], x), ones);
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(codes[1], x), ones);
            [_mm256_add_epi32(acc[0], low), _mm256_add_epi32(acc[1], high)]
        })
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        simd!({
            // Codes up to 255 would overflow the pair sums: make them signed, and move their sign to x.
            let x = _mm256_set1_epi32(x);
            let ones = _mm256_set1_epi16(1);
            let flip = _mm256_set1_epi8(-128);
            let codes = [_mm256_xor_si256(codes[0], flip), _mm256_xor_si256(codes[1], flip)];
            let low = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[0]), _mm256_sign_epi8(x, codes[0]));
            let high = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[1]), _mm256_sign_epi8(x, codes[1]));
            let low = _mm256_madd_epi16(low, ones);
            let high = _mm256_madd_epi16(high, ones);
            [_mm256_add_epi32(acc[0], low), _mm256_add_epi32(acc[1], high)]
        })
    }

    #[inline(always)]
    fn any_gt(a: Self::F, b: Self::F) -> bool {
        let [low, high] = each!(_mm256_cmp_ps::<_CMP_GT_OQ>, a, b);
        simd!(_mm256_movemask_ps(_mm256_or_ps(low, high))) != 0
    }

    #[inline(always)]
    fn prefetch(x: &[u8], ahead: usize) {
        simd!(_mm_prefetch::<_MM_HINT_T1>(x.as_ptr().wrapping_add(ahead).cast()))
    }
    #[inline(always)]
    fn prefetch_near(x: &[u8], ahead: usize) {
        simd!(_mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(ahead).cast()))
    }
}
