//! `affine4g64` and its relatives: groups of 32, 64 or 128 values of 2 to 8 bits with a scale and a bias each.
//!
//! | bytes | field |
//! |---|---|
//! | 0..group·bits/8 | the codes as one stream of bits, least significant first |
//! | then | the scale, `f16` unless the name ends in `_bf16` or `_f32` |
//! | then | the bias, of the scale's type |
//!
//! value = scale · code + bias. Files store codes, scales and biases separately; the reader interleaves them in this
//! order.

use half::bf16;

use super::read_f16;
use crate::DType;
use crate::dtype::Row;

/// The parameters of a type made of affine groups.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Affine {
    bits: u8,
    group: u8,
    scale: AffineScale,
}

/// How a group stores its scale and its bias.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum AffineScale {
    F16,
    BF16,
    F32,
}

impl Affine {
    /// Widths of a code.
    pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
    /// Values of a group.
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// The type with these parameters, if it is one of [`Affine::BITS`] and [`Affine::GROUPS`].
    pub fn new(bits: usize, group: usize, scale: AffineScale) -> Option<Affine> {
        let known = Affine::BITS.contains(&bits) && Affine::GROUPS.contains(&group);
        known.then_some(Affine { bits: bits as u8, group: group as u8, scale })
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        usize::from(self.bits)
    }

    /// Values of a group.
    pub fn group(self) -> usize {
        usize::from(self.group)
    }

    /// How scale and bias are stored.
    pub fn scale(self) -> AffineScale {
        self.scale
    }

    /// Bytes of a group's codes, which come first.
    pub fn code_bytes(self) -> usize {
        self.group() * self.bits() / 8
    }

    pub(crate) fn row(self) -> &'static Row {
        let bits = Affine::BITS.iter().position(|&b| b == self.bits()).expect("checked when made");
        &TABLE[bits][self.group() / 64 * 3 + self.scale as usize]
    }
}

impl AffineScale {
    /// The plain type of scale and bias.
    pub fn dtype(self) -> DType {
        match self {
            AffineScale::F16 => DType::F16,
            AffineScale::BF16 => DType::BF16,
            AffineScale::F32 => DType::F32,
        }
    }

    /// The plain type as a scale, if it can be one.
    pub fn of(dtype: DType) -> Option<AffineScale> {
        let all = [AffineScale::F16, AffineScale::BF16, AffineScale::F32];
        all.into_iter().find(|scale| scale.dtype() == dtype)
    }

    const fn bytes(self) -> usize {
        match self {
            AffineScale::F32 => 4,
            _ => 2,
        }
    }
}

/// A scale type, known at compile time.
trait Number {
    const TYPE: AffineScale;
    fn read(bytes: &[u8]) -> f32;
}

struct F16;
struct Bf16;
struct F32;

impl Number for F16 {
    const TYPE: AffineScale = AffineScale::F16;
    fn read(bytes: &[u8]) -> f32 {
        read_f16([bytes[0], bytes[1]])
    }
}

impl Number for Bf16 {
    const TYPE: AffineScale = AffineScale::BF16;
    fn read(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Number for F32 {
    const TYPE: AffineScale = AffineScale::F32;
    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

const fn block_bytes(bits: usize, group: usize, scale: AffineScale) -> usize {
    group * bits / 8 + 2 * scale.bytes()
}

fn decode<const BITS: usize, const GROUP: usize, N: Number>(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.chunks_exact(block_bytes(BITS, GROUP, N::TYPE));
    for (block, out) in blocks.zip(out.as_chunks_mut::<GROUP>().0) {
        let (codes, rest) = block.split_at(GROUP * BITS / 8);
        let (scale, bias) = (N::read(rest), N::read(&rest[N::TYPE.bytes()..]));
        // Eight codes are whole bytes, whatever their width.
        for (codes, out) in codes.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<8>().0) {
            let word = codes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            for (i, out) in out.iter_mut().enumerate() {
                let code = word >> (BITS * i) & ((1 << BITS) - 1);
                *out = scale * code as f32 + bias;
            }
        }
    }
}

macro_rules! row {
    ($bits:literal, $group:literal, $number:ident, $scale:ident, $suffix:literal) => {
        Row {
            dtype: DType::Affine(Affine { bits: $bits, group: $group, scale: AffineScale::$scale }),
            name: concat!("affine", $bits, "g", $group, $suffix),
            ggml_id: None,
            gguf_file_type: None,
            block_elems: $group,
            block_bytes: block_bytes($bits, $group, AffineScale::$scale),
            decode: decode::<$bits, $group, $number>,
            encode: None,
        }
    };
}

macro_rules! rows {
    ($($bits:literal),*) => {
        [$([
            row!($bits, 32, F16, F16, ""),
            row!($bits, 32, Bf16, BF16, "_bf16"),
            row!($bits, 32, F32, F32, "_f32"),
            row!($bits, 64, F16, F16, ""),
            row!($bits, 64, Bf16, BF16, "_bf16"),
            row!($bits, 64, F32, F32, "_f32"),
            row!($bits, 128, F16, F16, ""),
            row!($bits, 128, Bf16, BF16, "_bf16"),
            row!($bits, 128, F32, F32, "_f32"),
        ]),*]
    };
}

/// By width, then by group and scale.
static TABLE: [[Row; 9]; 6] = rows!(2, 3, 4, 5, 6, 8);

/// Every row, by width, group and scale.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode_row, encode_row};

    /// Code `i` of a stream, bit by bit.
    fn code(stream: &[u8], bits: usize, i: usize) -> u32 {
        (0..bits).fold(0, |code, b| {
            let at = i * bits + b;
            code | u32::from(stream[at / 8] >> (at % 8) & 1) << b
        })
    }

    #[test]
    fn every_width_group_and_scale_decodes() {
        let mut state = 7u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        for row in rows() {
            let DType::Affine(affine) = row.dtype else { panic!("{}", row.name) };
            assert_eq!(Affine::new(affine.bits(), affine.group(), affine.scale()), Some(affine));
            assert!(std::ptr::eq(affine.row(), row), "{}", row.name);
            let numbers: [f32; 4] = [0.125, -1.5, -0.0625, 3.0];
            let (mut bytes, mut want) = (Vec::new(), Vec::new());
            for pair in numbers.chunks_exact(2) {
                let codes: Vec<u8> = (0..affine.code_bytes()).map(|_| noise()).collect();
                let value = |i| pair[0] * code(&codes, affine.bits(), i) as f32 + pair[1];
                want.extend((0..affine.group()).map(value));
                bytes.extend(codes);
                let mut stored = vec![0; 2 * affine.scale().bytes()];
                encode_row(affine.scale().dtype(), pair, &mut stored).unwrap();
                bytes.extend(stored);
            }
            let mut got = vec![0.0; 2 * affine.group()];
            decode_row(row.dtype, &bytes, &mut got).unwrap();
            assert_eq!(got, want, "{}", row.name);
        }
    }

    #[test]
    fn parameters_are_named_and_checked() {
        let affine = Affine::new(4, 64, AffineScale::F16).unwrap();
        assert_eq!(DType::Affine(affine).name(), "affine4g64");
        assert_eq!(DType::Affine(affine).row_bytes(128), Some(72));
        assert_eq!(DType::Affine(affine).bits_per_weight(), 4.5);
        assert_eq!(DType::from_name("Affine6g128_bf16").map(|d| d.block_bytes()), Some(100));
        assert_eq!(Affine::new(7, 64, AffineScale::F16), None);
        assert_eq!(Affine::new(4, 256, AffineScale::F16), None);
        assert_eq!(AffineScale::of(DType::BF16), Some(AffineScale::BF16));
        assert_eq!(AffineScale::of(DType::U8), None);
    }
}
