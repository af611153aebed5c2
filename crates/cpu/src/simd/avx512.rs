//! Vector operations in AVX-512 (F, BW, VL, DQ, VNNI): one register per vector.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{LANES, Simd};
use crate::isa::{InstructionSets, Vectorized};

/// 512-bit registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Calls intrinsics, which are inlined into a function that enables the features.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: `Avx512` methods are only reached through dispatch, which has checked the CPU; pointers
        // come from references to arrays of the size that is read or written.
        unsafe { $e }
    };
}

/// The word, of 64, selected by the low six bits of each word of `index`.
#[inline(always)]
fn pick(table: &[u16; 64], index: __m512i) -> __m512i {
    simd!({
        let (low, high) =
            (_mm512_loadu_si512(table.as_ptr().cast()), _mm512_loadu_si512(table.as_ptr().add(32).cast()));
        _mm512_permutex2var_epi16(low, index, high)
    })
}

/// The word, of 256, selected by the low byte of each word of `index`: its upper two bits choose one of four tables.
#[inline(always)]
fn entries(table: &[[u16; 64]], index: __m512i) -> __m512i {
    let [a, b, c, d] =
        [pick(&table[0], index), pick(&table[1], index), pick(&table[2], index), pick(&table[3], index)];
    simd!({
        let seventh = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
        let eighth = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
        let low = _mm512_mask_blend_epi16(seventh, a, b);
        let high = _mm512_mask_blend_epi16(seventh, c, d);
        _mm512_mask_blend_epi16(eighth, low, high)
    })
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    const HAS_TILES: bool = true;
    const ROWS: usize = 8;
    const WIDE_ZERO: i32 = 128;
    const CODE_ZERO: i32 = 128;

    #[inline(always)]
    fn call<V: Vectorized>(what: V) -> V::Output {
        // SAFETY: the caller runs on this set, see [`Simd`].
        unsafe { V::Home::avx512(what) }
    }

    #[inline(always)]
    fn splat(v: f32) -> Self::F {
        simd!(_mm512_set1_ps(v))
    }
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self::F {
        simd!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(v: Self::F, out: &mut [f32; LANES]) {
        simd!(_mm512_storeu_ps(out.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn load_le(x: &[u8; 4 * LANES]) -> Self::F {
        simd!(_mm512_loadu_ps(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_le(v: Self::F, out: &mut [u8; 4 * LANES]) {
        simd!(_mm512_storeu_ps(out.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn load_f16(x: &[u8; 2 * LANES]) -> Self::F {
        // `_mm512_cvtph_ps` suppresses exceptions, a form that cannot take a memory operand. This one can, and
        // exceptions are masked anyway.
        simd!(_mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(x: &[u8; 2 * LANES]) -> Self::F {
        simd!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    fn store_f16(v: Self::F, out: &mut [u8; 2 * LANES]) {
        simd!(_mm256_storeu_si256(
            out.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
        ))
    }
    #[inline(always)]
    fn load_u8(x: &[u8; LANES]) -> Self::F {
        simd!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
    }
    #[inline(always)]
    fn load_i8(x: &[u8; LANES]) -> Self::F {
        simd!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))))
    }

    #[inline(always)]
    fn add(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        simd!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(a: Self::F, b: Self::F) -> Self::F {
        simd!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round(v: Self::F) -> Self::F {
        simd!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }
    #[inline(always)]
    fn select_gt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F {
        simd!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn first(n: usize, a: Self::F, b: Self::F) -> Self::F {
        let mask = if n >= LANES { 0xffff } else { (1u16 << n) - 1 };
        simd!(_mm512_mask_blend_ps(mask, b, a))
    }
    #[inline(always)]
    fn load_u8_int(x: &[u8; LANES]) -> Self::I {
        simd!(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn look_up(table: &[f32; LANES], index: Self::I) -> Self::F {
        simd!(_mm512_permutexvar_ps(index, _mm512_loadu_ps(table.as_ptr())))
    }
    #[inline(always)]
    fn lane0(v: Self::F) -> f32 {
        simd!(_mm512_cvtss_f32(v))
    }

    #[inline(always)]
    fn swap_pairs(v: Self::F) -> Self::F {
        simd!(_mm512_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn isplat(v: i32) -> Self::I {
        simd!(_mm512_set1_epi32(v))
    }
    #[inline(always)]
    fn iadd(a: Self::I, b: Self::I) -> Self::I {
        simd!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn isub(a: Self::I, b: Self::I) -> Self::I {
        simd!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn imul(a: Self::I, b: Self::I) -> Self::I {
        simd!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn ixor(a: Self::I, b: Self::I) -> Self::I {
        simd!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn iand(a: Self::I, b: Self::I) -> Self::I {
        simd!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn ishl<const N: u32>(v: Self::I) -> Self::I {
        simd!(_mm512_slli_epi32::<N>(v))
    }
    #[inline(always)]
    fn ishr<const N: u32>(v: Self::I) -> Self::I {
        simd!(_mm512_srli_epi32::<N>(v))
    }
    #[inline(always)]
    fn isar<const N: u32>(v: Self::I) -> Self::I {
        simd!(_mm512_srai_epi32::<N>(v))
    }
    #[inline(always)]
    fn to_int(v: Self::F) -> Self::I {
        simd!(_mm512_cvtps_epi32(v))
    }
    #[inline(always)]
    fn to_float(v: Self::I) -> Self::F {
        simd!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn bits(v: Self::F) -> Self::I {
        simd!(_mm512_castps_si512(v))
    }
    #[inline(always)]
    fn from_bits(v: Self::I) -> Self::F {
        simd!(_mm512_castsi512_ps(v))
    }
    #[inline(always)]
    fn store_i8(v: Self::I, out: &mut [u8; LANES]) {
        simd!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(v)))
    }

    #[inline(always)]
    fn store_u16(v: Self::I, out: &mut [u8; 2 * LANES]) {
        simd!(_mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(v)))
    }

    #[inline(always)]
    fn load_bytes(x: &[u8; 4 * LANES]) -> Self::B {
        simd!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn store_bytes(v: Self::B, out: &mut [u8; 4 * LANES]) {
        simd!(_mm512_storeu_si512(out.as_mut_ptr().cast(), v))
    }
    #[inline(always)]
    fn badd(a: Self::B, b: Self::B) -> Self::B {
        simd!(_mm512_add_epi8(a, b))
    }
    #[inline(always)]
    fn bsplat(v: u8) -> Self::B {
        simd!(_mm512_set1_epi8(v as i8))
    }
    #[inline(always)]
    fn band(a: Self::B, b: Self::B) -> Self::B {
        simd!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn bor(a: Self::B, b: Self::B) -> Self::B {
        simd!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn bxor(a: Self::B, b: Self::B) -> Self::B {
        simd!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn bshl<const N: u32>(v: Self::B) -> Self::B {
        simd!(_mm512_slli_epi16::<N>(v))
    }
    #[inline(always)]
    fn bshr<const N: u32>(v: Self::B) -> Self::B {
        simd!(_mm512_srli_epi16::<N>(v))
    }
    #[inline(always)]
    fn blook_up(table: &[u8; LANES], index: Self::B) -> Self::B {
        simd!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), index))
    }
    #[inline(always)]
    fn blook_up_wide(table: &[u16; 256], index: Self::B) -> (Self::B, Self::B) {
        let table = table.as_chunks::<64>().0;
        let even = entries(table, index);
        let odd = entries(table, simd!(_mm512_srli_epi16::<8>(index)));
        simd!({
            let low = _mm512_set1_epi16(0xff);
            (
                _mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16::<8>(odd)),
                _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_andnot_si512(low, odd)),
            )
        })
    }
    #[inline(always)]
    fn dot(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        simd!(_mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)))
    }
    #[inline(always)]
    fn dot_wide(acc: Self::I, codes: Self::B, x: i32) -> Self::I {
        Self::dot(acc, codes, x)
    }

    #[inline(always)]
    fn wsplat(v: u16) -> Self::B {
        simd!(_mm512_set1_epi16(v as i16))
    }
    #[inline(always)]
    fn lower_exponents(from: Self::B, steps: Self::B) -> Self::B {
        // The permutation reads five index bits, and the fifth is not part of the step: the table is stored twice.
        const TABLE: [u16; 32] = {
            let mut table = [u16::MAX; 32];
            let mut i = 0;
            while i < 32 {
                if i % 16 != 15 {
                    table[i] = (i as u16 % 16) << 7;
                }
                i += 1;
            }
            table
        };
        simd!({
            let table = _mm512_loadu_si512(TABLE.as_ptr().cast());
            _mm512_subs_epu16(from, _mm512_permutexvar_epi16(steps, table))
        })
    }
    #[inline(always)]
    fn widen_pairs(pairs: Self::B) -> (Self::F, Self::F) {
        simd!((
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))
        ))
    }
    #[inline(always)]
    fn max_lane(v: Self::F) -> f32 {
        simd!({
            let numbers = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(v, v);
            if numbers == 0 { f32::NAN } else { _mm512_mask_reduce_max_ps(numbers, v) }
        })
    }
    #[inline(always)]
    fn any_gt(a: Self::F, b: Self::F) -> bool {
        simd!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) != 0
    }
    #[inline(always)]
    fn sum_int(v: Self::I) -> i32 {
        simd!(_mm512_reduce_add_epi32(v))
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
