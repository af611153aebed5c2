//! Activation types that only this backend knows: blocks of 8-bit codes, and pairs of bf16.
//!
//! A `q8` row is blocks of 32 signed codes with `scale = amax/127` and `code = round(x·127/amax)`, ties to even; a block
//! below [`LEAST`] has scale and codes zero, one with a value that is infinite or no number has scale NaN and so has no
//! value that is a number, and the last block is padded with zeros. After the codes stand the f32 scale, -128 times the
//! sum of all codes (f32) and of the first sixteen (i32), and [`ANCHOR`] plus the first of these: kernels take the zero
//! point of a weight's codes out with them, and its minimum in.
//!
//! A `bf16x2` row holds each value as the sum of two bf16: the value rounded, and what that left, rounded. All upper
//! parts come first, then all lower ones, each half padded with zeros to a multiple of [`PAIR_COLS`]. Parts below
//! [`PAIR_LEAST`] are zero.

use bytemuck::{Pod, Zeroable};
use mambo_kernel::rounding::{bf16_bits, bf16_value};
use mambo_kernel::{Elem, PrivateElem};

/// Values of a `q8` row that share one scale.
pub(crate) const BLOCK: usize = 32;
/// 1.5·2^23. An integer of at most 22 bits gives the same float whether it is added to this one or to its bits: an
/// integer sum that starts here needs no conversion.
pub(crate) const ANCHOR: f32 = 12_582_912.0;
/// Blocks of smaller values are zero: 127 divided by them would be infinite.
pub(crate) const LEAST: f32 = 1.0 / (1u128 << 120) as f32;
/// Columns that a `bf16x2` row has a multiple of.
pub(crate) const PAIR_COLS: usize = 32;
/// Parts of a `bf16x2` value that are smaller than 2^-56 are zero.
pub(crate) const PAIR_LEAST: f32 = 1.0 / (1u64 << 56) as f32;

/// A block of 8-bit activations as it stands in memory.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q8Block {
    /// Codes, four to a word: a word is what instructions broadcast over a vector.
    pub codes: [i32; BLOCK / 4],
    pub scale: f32,
    /// -128 times the sum of all codes, exactly.
    pub offset: f32,
    /// -128 times the sum of the first half.
    pub half_offset: i32,
    /// The bits of the float `ANCHOR + offset`.
    pub start: i32,
}

const _: () = assert!(size_of::<Q8Block>() == BLOCK + 16 && align_of::<Q8Block>() == 4);

static Q8_ELEM: PrivateElem = PrivateElem {
    name: "q8",
    row_bytes: |cols| cols.div_ceil(BLOCK) * size_of::<Q8Block>(),
    encode: encode_q8,
    decode: decode_q8,
    // Half a code of the largest value in the block.
    error: 1.01 / 254.0,
};

static PAIR_ELEM: PrivateElem = PrivateElem {
    name: "bf16x2",
    row_bytes: |cols| 2 * 2 * cols.next_multiple_of(PAIR_COLS),
    encode: encode_pairs,
    decode: decode_pairs,
    // Each part keeps eight bits and rounds to nearest.
    error: 1.0 / (1 << 16) as f32,
};

/// Blocks of 8-bit codes.
pub(crate) const Q8: Elem = Elem::Private(&Q8_ELEM);
/// Sums of two bf16.
pub(crate) const BF16X2: Elem = Elem::Private(&PAIR_ELEM);

/// Scale of a `q8` block whose largest magnitude is `amax`, infinity if a value is not finite, and what its values are
/// multiplied with to give codes.
#[inline(always)]
pub(crate) fn q8_scale(amax: f32) -> (f32, f32) {
    if amax < LEAST {
        (0.0, 0.0)
    } else if amax < f32::INFINITY {
        (amax / 127.0, 127.0 / amax)
    } else {
        (f32::NAN, 0.0)
    }
}

fn encode_q8(x: &[f32]) -> Vec<u8> {
    let block = |values: &[f32]| {
        let finite = values.iter().all(|v| v.is_finite());
        let amax = values.iter().fold(if finite { 0.0 } else { f32::INFINITY }, |m, v| v.abs().max(m));
        let (scale, inverse) = q8_scale(amax);
        let mut codes = [0i8; BLOCK];
        for (value, code) in values.iter().zip(&mut codes) {
            *code = (value * inverse).round_ties_even() as i8;
        }
        let offset = |codes: &[i8]| -128 * codes.iter().map(|&code| i32::from(code)).sum::<i32>();
        Q8Block {
            codes: bytemuck::cast(codes),
            scale,
            offset: offset(&codes) as f32,
            half_offset: offset(&codes[..BLOCK / 2]),
            start: (ANCHOR + offset(&codes) as f32).to_bits() as i32,
        }
    };
    let blocks: Vec<Q8Block> = x.chunks(BLOCK).map(block).collect();
    bytemuck::cast_slice(&blocks).to_vec()
}

fn decode_q8(row: &[u8], cols: usize) -> Vec<f32> {
    let block = |bytes: &[u8]| -> [f32; BLOCK] {
        let block: Q8Block = bytemuck::pod_read_unaligned(bytes);
        let codes: [i8; BLOCK] = bytemuck::cast(block.codes);
        codes.map(|code| f32::from(code) * block.scale)
    };
    row.chunks_exact(size_of::<Q8Block>()).flat_map(block).take(cols).collect()
}

fn encode_pairs(x: &[f32]) -> Vec<u8> {
    let part = |v: f32| if v.abs() < PAIR_LEAST { 0 } else { bf16_bits(v) };
    let half = |values: &mut dyn Iterator<Item = f32>| {
        let mut bytes: Vec<u8> = values.flat_map(|v| part(v).to_le_bytes()).collect();
        bytes.resize(2 * x.len().next_multiple_of(PAIR_COLS), 0);
        bytes
    };
    let mut row = half(&mut x.iter().copied());
    row.extend(half(&mut x.iter().map(|&v| v - bf16_value(part(v)))));
    row
}

fn decode_pairs(row: &[u8], cols: usize) -> Vec<f32> {
    let parts = row.as_chunks::<2>().0;
    let value = |i: usize| bf16_value(u16::from_le_bytes(parts[i]));
    let half = cols.next_multiple_of(PAIR_COLS);
    (0..cols).map(|i| value(i) + value(half + i)).collect()
}
