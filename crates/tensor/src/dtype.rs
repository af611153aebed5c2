//! The table of element types: one row per type with its names, sizes and codecs.
//!
//! A new type is a variant, a row of [`TABLE`] and its block with a decode (and encode) function; affine groups,
//! which have parameters, bring rows of their own. Nothing else in the workspace lists the types' sizes or ids.

use std::fmt;

use crate::TensorError;
use crate::blocks::Block;
use crate::blocks::grouped::{self, Affine};
use crate::blocks::{
    iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4, q2_k, q3_k, q4_0,
    q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, tq1_0, tq2_0,
};
use crate::plain;

/// How the values of a tensor are stored.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[allow(missing_docs, reason = "the names are the documentation; layouts are described in `blocks`")]
#[allow(non_camel_case_types, reason = "the block formats' published names hold an underscore")]
pub enum DType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    F8E4M3,
    F8E5M2,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Affine(Affine),
}

/// Widens whole blocks to f32; the lengths have been checked.
pub(crate) type DecodeFn = fn(&[u8], &mut [f32]);
/// Narrows whole blocks from f32; the lengths have been checked, and for block formats also finiteness.
pub(crate) type EncodeFn = fn(&[f32], Option<&[f32]>, &mut [u8]) -> Result<(), TensorError>;

pub(crate) struct Row {
    pub dtype: DType,
    pub name: &'static str,
    pub ggml_id: Option<u32>,
    pub gguf_file_type: Option<u32>,
    pub block_elems: usize,
    pub block_bytes: usize,
    pub decode: DecodeFn,
    pub encode: Option<EncodeFn>,
}

const fn plain(
    dtype: DType,
    name: &'static str,
    ggml_id: Option<u32>,
    block_bytes: usize,
    decode: DecodeFn,
    encode: Option<EncodeFn>,
) -> Row {
    // Only floats that fill whole files have a number for those.
    let gguf_file_type = match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(1),
        DType::BF16 => Some(32),
        _ => None,
    };
    Row { dtype, name, ggml_id, gguf_file_type, block_elems: 1, block_bytes, decode, encode }
}

const fn block<B: Block>(
    name: &'static str,
    (ggml_id, gguf_file_type): (u32, Option<u32>),
    decode: DecodeFn,
    encode: Option<EncodeFn>,
) -> Row {
    Row {
        dtype: B::DTYPE,
        name,
        ggml_id: Some(ggml_id),
        gguf_file_type,
        block_elems: B::ELEMS,
        block_bytes: size_of::<B>(),
        decode,
        encode,
    }
}

/// In the order of the enum.
static TABLE: [Row; 38] = [
    plain(DType::F32, "f32", Some(0), 4, plain::decode_f32, Some(plain::encode_f32)),
    plain(DType::F16, "f16", Some(1), 2, plain::decode_f16, Some(plain::encode_f16)),
    plain(DType::BF16, "bf16", Some(30), 2, plain::decode_bf16, Some(plain::encode_bf16)),
    plain(DType::F64, "f64", Some(28), 8, plain::decode_f64, None),
    plain(DType::I8, "i8", Some(24), 1, plain::decode_i8, None),
    plain(DType::I16, "i16", Some(25), 2, plain::decode_i16, None),
    plain(DType::I32, "i32", Some(26), 4, plain::decode_i32, None),
    plain(DType::I64, "i64", Some(27), 8, plain::decode_i64, None),
    plain(DType::U8, "u8", None, 1, plain::decode_u8, None),
    plain(DType::U16, "u16", None, 2, plain::decode_u16, None),
    plain(DType::U32, "u32", None, 4, plain::decode_u32, None),
    plain(DType::U64, "u64", None, 8, plain::decode_u64, None),
    plain(DType::Bool, "bool", None, 1, plain::decode_bool, None),
    plain(DType::F8E4M3, "f8_e4m3", None, 1, plain::decode_f8_e4m3, Some(plain::encode_f8_e4m3)),
    plain(DType::F8E5M2, "f8_e5m2", None, 1, plain::decode_f8_e5m2, None),
    block::<q4_0::Q4_0>("q4_0", (2, Some(2)), q4_0::decode, Some(q4_0::encode)),
    block::<q4_1::Q4_1>("q4_1", (3, Some(3)), q4_1::decode, Some(q4_1::encode)),
    block::<q5_0::Q5_0>("q5_0", (6, Some(8)), q5_0::decode, Some(q5_0::encode)),
    block::<q5_1::Q5_1>("q5_1", (7, Some(9)), q5_1::decode, Some(q5_1::encode)),
    block::<q8_0::Q8_0>("q8_0", (8, Some(7)), q8_0::decode, Some(q8_0::encode)),
    block::<q2_k::Q2K>("q2_k", (10, Some(10)), q2_k::decode, Some(q2_k::encode)),
    block::<q3_k::Q3K>("q3_k", (11, Some(12)), q3_k::decode, Some(q3_k::encode)),
    block::<q4_k::Q4K>("q4_k", (12, Some(15)), q4_k::decode, Some(q4_k::encode)),
    block::<q5_k::Q5K>("q5_k", (13, Some(17)), q5_k::decode, Some(q5_k::encode)),
    block::<q6_k::Q6K>("q6_k", (14, Some(18)), q6_k::decode, Some(q6_k::encode)),
    block::<iq1_s::Iq1S>("iq1_s", (19, None), iq1_s::decode, None),
    block::<iq1_m::Iq1M>("iq1_m", (29, None), iq1_m::decode, None),
    block::<iq2_xxs::Iq2Xxs>("iq2_xxs", (16, None), iq2_xxs::decode, None),
    block::<iq2_xs::Iq2Xs>("iq2_xs", (17, None), iq2_xs::decode, None),
    block::<iq2_s::Iq2S>("iq2_s", (22, None), iq2_s::decode, None),
    block::<iq3_xxs::Iq3Xxs>("iq3_xxs", (18, None), iq3_xxs::decode, None),
    block::<iq3_s::Iq3S>("iq3_s", (21, None), iq3_s::decode, None),
    block::<iq4_nl::Iq4Nl>("iq4_nl", (20, Some(25)), iq4_nl::decode, Some(iq4_nl::encode)),
    block::<iq4_xs::Iq4Xs>("iq4_xs", (23, Some(30)), iq4_xs::decode, Some(iq4_xs::encode)),
    block::<tq1_0::Tq1_0>("tq1_0", (34, None), tq1_0::decode, None),
    block::<tq2_0::Tq2_0>("tq2_0", (35, None), tq2_0::decode, None),
    block::<mxfp4::Mxfp4>("mxfp4", (39, Some(38)), mxfp4::decode, Some(mxfp4::encode)),
    block::<nvfp4::Nvfp4>("nvfp4", (40, Some(39)), nvfp4::decode, Some(nvfp4::encode)),
];

impl DType {
    pub(crate) fn row(self) -> &'static Row {
        match self {
            DType::Affine(affine) => affine.row(),
            dtype => TABLE.iter().find(|r| r.dtype == dtype).expect("every type has a row"),
        }
    }

    fn rows() -> impl Iterator<Item = &'static Row> {
        TABLE.iter().chain(grouped::rows())
    }

    /// Every type, in table order.
    pub fn all() -> impl Iterator<Item = DType> {
        DType::rows().map(|r| r.dtype)
    }

    /// Lower-case name: `f32`, `bf16`, `q4_0`, `q4_k`, ...
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The type of that name, in any letter case.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::rows().find(|r| r.name.eq_ignore_ascii_case(name)).map(|r| r.dtype)
    }

    /// Values in one block; 1 for plain types.
    pub fn block_elems(self) -> usize {
        self.row().block_elems
    }

    /// Bytes of one block; the element size for plain types.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Bytes of a row of `elems` values; `None` if that is not a whole number of blocks or overflows.
    pub fn row_bytes(self, elems: usize) -> Option<usize> {
        let row = self.row();
        if !elems.is_multiple_of(row.block_elems) {
            return None;
        }
        (elems / row.block_elems).checked_mul(row.block_bytes)
    }

    /// Whether values are stored in blocks that share a scale.
    pub fn is_quantized(self) -> bool {
        self.row().block_elems > 1
    }

    /// Whether [`crate::encode_row`] can write the type.
    pub fn is_encodable(self) -> bool {
        self.row().encode.is_some()
    }

    /// Number of the type in GGUF files; `None` for types that GGUF lacks.
    pub fn ggml_id(self) -> Option<u32> {
        self.row().ggml_id
    }

    /// Number that GGUF gives a file whose tensors are mostly of this type; `None` for types we do not write.
    pub fn gguf_file_type(self) -> Option<u32> {
        self.row().gguf_file_type
    }

    /// The type with that number in GGUF files.
    pub fn from_ggml_id(id: u32) -> Option<DType> {
        TABLE.iter().find(|r| r.ggml_id == Some(id)).map(|r| r.dtype)
    }

    /// Storage per value, scales included.
    pub fn bits_per_weight(self) -> f64 {
        self.row().block_bytes as f64 * 8.0 / self.row().block_elems as f64
    }

    pub(crate) fn encodable_names() -> String {
        let names: Vec<_> = TABLE.iter().filter(|r| r.encode.is_some()).map(|r| r.name).collect();
        names.join(", ")
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_found_by_name_and_number() {
        for row in DType::rows() {
            assert!(std::ptr::eq(row.dtype.row(), row), "{}", row.name);
            assert_eq!(DType::from_name(&row.name.to_uppercase()), Some(row.dtype));
            if let Some(id) = row.ggml_id {
                assert_eq!(DType::from_ggml_id(id), Some(row.dtype), "{}", row.name);
            }
        }
    }

    #[test]
    fn row_bytes_requires_whole_blocks() {
        assert_eq!(DType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(DType::Q4_0.row_bytes(65), None);
        assert_eq!(DType::Q6K.row_bytes(0), Some(0));
        assert_eq!(DType::F64.row_bytes(usize::MAX), None);
        assert_eq!(DType::Q4K.bits_per_weight(), 4.5);
        assert_eq!(format!("{:>5}|", DType::F32), "  f32|");
    }
}
