//! Element types in memory: widening, and rounding to the bits that `mambo_kernel::rounding` defines value by value.
//! Knows no layout.
//!
//! Nothing here passes vectors to a closure: it would be compiled separately, without the target features of the
//! function that the rest is inlined into.

use mambo_kernel::rounding::{
    E4M3_MAX, E4M3_MIN_NORMAL, F16_MAX, F16_MIN_NORMAL, KV_BLOCK, MIX, Q8_MAX, SPREAD, q8_inverse, q8_scale,
};

use crate::simd::{LANES, Simd, part, vectors};

/// A float type of stored values.
pub(crate) trait Stored: Send + Sync + 'static {
    const BYTES: usize;
    /// Sixteen values, widened.
    fn load<S: Simd>(bytes: &[u8]) -> S::F;

    /// Up to sixteen values, zero beyond the end.
    #[inline(always)]
    fn load_part<S: Simd>(bytes: &[u8]) -> S::F {
        if bytes.len() >= LANES * Self::BYTES {
            return Self::load::<S>(bytes);
        }
        let mut whole = [0; 4 * LANES];
        whole[..bytes.len()].copy_from_slice(bytes);
        Self::load::<S>(&whole)
    }
}

/// A type of stored recurrent states.
pub(crate) trait StoredState: Stored {
    /// Rounds as many lanes as `out` takes. Random bits are those of element `index` and the following ones, for this
    /// seed.
    fn store<S: Simd>(v: S::F, seed: u32, index: usize, out: &mut [u8]);
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;
pub(crate) struct E4m3;

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

/// Bits 20..27 and 31 of an f32, to which [`widen_e4m3`] moves the magnitude and the sign.
const MAGNITUDE: i32 = 0x07f0_0000;
const SIGN: i32 = i32::MIN;

/// An f8's bits at their positions in an f32, with an exponent too small by 120.
#[inline(always)]
fn place_e4m3<S: Simd>(byte: S::I) -> S::I {
    S::isar::<4>(S::ishl::<24>(byte))
}

/// Widens f8 (e4m3) values that are not NaN; NaN would become 480.
#[inline(always)]
pub(crate) fn widen_e4m3<S: Simd>(byte: S::I) -> S::F {
    let placed = S::from_bits(S::iand(place_e4m3::<S>(byte), S::isplat(MAGNITUDE | SIGN)));
    // Subnormal values are subnormal here too; the product is right for both.
    S::mul(placed, S::splat(f32::from_bits((120 + 127) << 23)))
}

impl Stored for E4m3 {
    const BYTES: usize = 1;
    #[inline(always)]
    fn load<S: Simd>(bytes: &[u8]) -> S::F {
        let byte = S::load_u8_int(bytes.first_chunk().expect("sixteen values"));
        let magnitude = S::from_bits(S::iand(place_e4m3::<S>(byte), S::isplat(MAGNITUDE)));
        let largest = S::splat(f32::from_bits(MAGNITUDE as u32 - (1 << 20)));
        S::select_gt(magnitude, largest, S::splat(f32::NAN), widen_e4m3::<S>(byte))
    }
}

impl StoredState for F32 {
    #[inline(always)]
    fn store<S: Simd>(v: S::F, _seed: u32, _index: usize, out: &mut [u8]) {
        if let Some(full) = out.first_chunk_mut() {
            return S::store_le(v, full);
        }
        let mut whole = [0; 4 * LANES];
        S::store_le(v, &mut whole);
        out.copy_from_slice(&whole[..out.len()]);
    }
}

impl StoredState for F16 {
    #[inline(always)]
    fn store<S: Simd>(v: S::F, seed: u32, index: usize, out: &mut [u8]) {
        let rounded = round_f16::<S>(v, random::<S>(seed, index));
        if let Some(full) = out.first_chunk_mut() {
            return S::store_f16(rounded, full);
        }
        let mut whole = [0; 2 * LANES];
        S::store_f16(rounded, &mut whole);
        out.copy_from_slice(&whole[..out.len()]);
    }
}

impl StoredState for Bf16 {
    #[inline(always)]
    fn store<S: Simd>(v: S::F, _seed: u32, _index: usize, out: &mut [u8]) {
        if let Some(full) = out.first_chunk_mut() {
            return store_bf16::<S>(v, full);
        }
        let mut whole = [0; 2 * LANES];
        store_bf16::<S>(v, &mut whole);
        out.copy_from_slice(&whole[..out.len()]);
    }
}

/// |v|.
#[inline(always)]
fn size<S: Simd>(v: S::F) -> S::F {
    S::from_bits(S::iand(S::bits(v), S::isplat(i32::MAX)))
}

/// `other` where v is NaN, else `x`.
#[inline(always)]
fn where_number<S: Simd>(v: S::F, x: S::I, other: u32) -> S::I {
    let other = S::from_bits(S::isplat(other as i32));
    S::bits(S::select_gt(size::<S>(v), S::splat(-1.0), S::from_bits(x), other))
}

/// Random bits of sixteen elements: `rounding::state_random`.
#[inline(always)]
fn random<S: Simd>(seed: u32, index: usize) -> S::I {
    const LANE: [u8; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let element = S::iadd(S::isplat(index as i32), S::load_u8_int(&LANE));
    let x = S::iadd(S::imul(element, S::isplat(SPREAD as i32)), S::isplat(seed as i32));
    let x = S::imul(S::ixor(x, S::ishr::<16>(x)), S::isplat(MIX[0] as i32));
    let x = S::imul(S::ixor(x, S::ishr::<13>(x)), S::isplat(MIX[1] as i32));
    S::ixor(x, S::ishr::<16>(x))
}

/// The f16 that random bits choose: `rounding::f16_stochastic`.
#[inline(always)]
fn round_f16<S: Simd>(v: S::F, random: S::I) -> S::F {
    // The bound is the first argument: NaN passes through.
    let size = S::min(S::splat(F16_MAX), size::<S>(v));
    let least = S::splat(F16_MIN_NORMAL);
    let offset = S::select_gt(least, size, least, S::zero());
    let drawn = S::iadd(S::bits(S::add(size, offset)), S::ishr::<19>(random));
    let kept = S::sub(S::from_bits(S::iand(drawn, S::isplat(!0x1fff))), offset);
    let sign = S::iand(S::bits(v), S::isplat(SIGN));
    S::from_bits(where_number::<S>(v, S::ixor(S::bits(kept), sign), 0x7fc0_0000))
}

/// Rounds to the nearest bf16: `rounding::bf16_bits`.
#[inline(always)]
pub(crate) fn store_bf16<S: Simd>(v: S::F, out: &mut [u8; 2 * LANES]) {
    let bits = S::bits(v);
    let odd = S::iand(S::ishr::<16>(bits), S::isplat(1));
    let rounded = S::iadd(bits, S::iadd(odd, S::isplat(0x7fff)));
    S::store_u16(S::ishr::<16>(where_number::<S>(v, rounded, 0x7fc0_0000)), out);
}

/// Rounds to the nearest f8: `rounding::e4m3_code`.
#[inline(always)]
pub(crate) fn store_e4m3<S: Simd>(v: S::F, out: &mut [u8; LANES]) {
    let size = S::min(S::splat(E4M3_MAX), size::<S>(v));
    let bits = S::bits(size);
    let odd = S::iand(S::ishr::<20>(bits), S::isplat(1));
    let normal = S::ishr::<20>(S::iadd(bits, S::iadd(odd, S::isplat(0x7_ffff))));
    let normal = S::isub(normal, S::isplat(120 << 3));
    let small = S::to_int(S::mul(size, S::splat(512.0)));
    let least = S::splat(E4M3_MIN_NORMAL);
    let code = S::bits(S::select_gt(least, size, S::from_bits(small), S::from_bits(normal)));
    // As a signed byte the sign is -128.
    let sign = S::iand(S::isar::<31>(S::bits(v)), S::isplat(-128));
    S::store_i8(where_number::<S>(v, S::iadd(code, sign), 0x7f), out);
}

/// Codes of up to 32 values and their scale: `rounding::q8_block`.
#[inline(always)]
pub(crate) fn store_q8<S: Simd>(x: &[f32], codes: &mut [u8; KV_BLOCK]) -> u16 {
    let (mut largest, mut poison) = (S::zero(), S::zero());
    for i in 0..vectors(x.len()) {
        let v = S::load_part(part(x, i));
        largest = S::max(size::<S>(v), largest);
        poison = S::fma(v, S::zero(), poison);
    }
    let scale = q8_scale(S::max_lane(largest), S::sum(poison));
    let inverse = S::splat(q8_inverse(scale));
    for (i, codes) in codes.as_chunks_mut().0.iter_mut().enumerate().take(vectors(x.len())) {
        let exact = S::mul(S::load_part(part(x, i)), inverse);
        let bounded = S::min(S::max(exact, S::splat(-Q8_MAX)), S::splat(Q8_MAX));
        S::store_i8(S::to_int(bounded), codes);
    }
    scale
}

#[cfg(test)]
mod tests {
    use mambo_kernel::rounding;

    use super::*;
    use crate::simd::Portable;

    /// Values of all magnitudes and kinds, sixteen at a time.
    fn values() -> impl Iterator<Item = [f32; LANES]> {
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0, -0.0, 1e-40];
        let bits = (0..u32::MAX).step_by(9_999_991).map(f32::from_bits);
        let near = (0..4096).map(|i| (i as f32 - 2048.0) / 4096.0);
        let mut all: Vec<f32> = odd.into_iter().chain(bits).chain(near).collect();
        all.resize(all.len().next_multiple_of(LANES), 1.0);
        all.as_chunks().0.to_vec().into_iter()
    }

    #[test]
    fn vectors_round_as_single_values_do() {
        for (block, v) in values().enumerate() {
            let (seed, index) = (block as u32 * 77, block * 31);
            let (mut bf16, mut e4m3) = ([0; 2 * LANES], [0; LANES]);
            store_bf16::<Portable>(v, &mut bf16);
            store_e4m3::<Portable>(v, &mut e4m3);
            let mut drawn = [0; 2 * LANES];
            F16::store::<Portable>(v, seed, index, &mut drawn);
            for (i, &v) in v.iter().enumerate() {
                let half = |bytes: &[u8]| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
                assert_eq!(half(&bf16), rounding::bf16_bits(v), "{v} as bf16");
                assert_eq!(e4m3[i], rounding::e4m3_code(v), "{v} as e4m3");
                let random = rounding::state_random(seed, index + i);
                assert_eq!(half(&drawn), rounding::f16_stochastic(v, random), "{v} as f16");
            }
        }
    }

    #[test]
    fn blocks_round_as_defined() {
        let all: Vec<f32> = values().flatten().collect();
        for (i, x) in all.chunks(KV_BLOCK).enumerate() {
            let x = &x[..1 + i % x.len()];
            let (mut got, mut want) = ([0; KV_BLOCK], [0; KV_BLOCK]);
            let scale = store_q8::<Portable>(x, &mut got);
            assert_eq!(scale, rounding::q8_block(x, &mut want[..x.len()]), "{x:?}");
            assert_eq!(got[..x.len()], want[..x.len()], "{x:?}");
        }
    }

    #[test]
    fn partial_vectors_are_stored_and_loaded() {
        let v: [f32; LANES] = std::array::from_fn(|i| i as f32);
        fn check<T: StoredState>(v: [f32; LANES]) {
            let mut out = [0xee; 4 * LANES];
            T::store::<Portable>(v, 1, 0, &mut out[..5 * T::BYTES]);
            assert!(out[5 * T::BYTES..].iter().all(|b| *b == 0xee));
            assert_eq!(T::load_part::<Portable>(&out[..5 * T::BYTES])[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
        }
        check::<F32>(v);
        check::<F16>(v);
        check::<Bf16>(v);
    }
}
