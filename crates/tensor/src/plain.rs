//! Types that store each value separately: floats, 8-bit floats, integers. All little-endian.

use half::{bf16, f16};

use crate::{DType, TensorError};

macro_rules! decoder {
    ($name:ident, $size:literal, |$raw:ident| $value:expr) => {
        pub(crate) fn $name(bytes: &[u8], out: &mut [f32]) {
            let (chunks, _) = bytes.as_chunks::<$size>();
            for (o, &$raw) in out.iter_mut().zip(chunks) {
                *o = $value;
            }
        }
    };
}

decoder!(decode_f32, 4, |b| f32::from_le_bytes(b));
decoder!(decode_f16, 2, |b| f16::from_le_bytes(b).to_f32());
decoder!(decode_bf16, 2, |b| bf16::from_le_bytes(b).to_f32());
decoder!(decode_f64, 8, |b| f64::from_le_bytes(b) as f32);
decoder!(decode_i8, 1, |b| f32::from(i8::from_le_bytes(b)));
decoder!(decode_i16, 2, |b| f32::from(i16::from_le_bytes(b)));
decoder!(decode_i32, 4, |b| i32::from_le_bytes(b) as f32);
decoder!(decode_i64, 8, |b| i64::from_le_bytes(b) as f32);
decoder!(decode_u8, 1, |b| f32::from(b[0]));
decoder!(decode_u16, 2, |b| f32::from(u16::from_le_bytes(b)));
decoder!(decode_u32, 4, |b| u32::from_le_bytes(b) as f32);
decoder!(decode_u64, 8, |b| u64::from_le_bytes(b) as f32);
decoder!(decode_bool, 1, |b| f32::from(u8::from(b[0] != 0)));
decoder!(decode_f8_e4m3, 1, |b| f8_e4m3_to_f32(b[0]));
// Five exponent bits with the bias of f16: the byte is an f16 without its low mantissa byte.
decoder!(decode_f8_e5m2, 1, |b| f16::from_bits(u16::from(b[0]) << 8).to_f32());

/// The variant without infinities: exponent bias 7, largest value 448, 0x7f and 0xff are NaN.
fn f8_e4m3_to_f32(byte: u8) -> f32 {
    let sign = u32::from(byte >> 7) << 31;
    let exponent = u32::from(byte >> 3 & 15);
    let mantissa = u32::from(byte & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => m as f32 / 512.0,
        (e, m) => f32::from_bits((e + 120) << 23 | m << 20),
    };
    f32::from_bits(sign | magnitude.to_bits())
}

pub(crate) fn encode_f32(
    values: &[f32],
    _importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), TensorError> {
    for (o, v) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *o = v.to_le_bytes();
    }
    Ok(())
}

pub(crate) fn encode_f16(
    values: &[f32],
    _importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), TensorError> {
    for (index, (o, &value)) in out.as_chunks_mut::<2>().0.iter_mut().zip(values).enumerate() {
        let narrow = f16::from_f32(value);
        if narrow.is_infinite() && value.is_finite() {
            return Err(TensorError::OutOfRange { dtype: DType::F16, index, value });
        }
        *o = narrow.to_le_bytes();
    }
    Ok(())
}

pub(crate) fn encode_bf16(
    values: &[f32],
    _importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), TensorError> {
    for (index, (o, &value)) in out.as_chunks_mut::<2>().0.iter_mut().zip(values).enumerate() {
        let narrow = bf16::from_f32(value);
        if narrow.is_infinite() && value.is_finite() {
            return Err(TensorError::OutOfRange { dtype: DType::BF16, index, value });
        }
        *o = narrow.to_le_bytes();
    }
    Ok(())
}

pub(crate) fn encode_f8_e4m3(
    values: &[f32],
    _importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), TensorError> {
    for (index, (o, &value)) in out.iter_mut().zip(values).enumerate() {
        *o = f8_e4m3(value).ok_or(TensorError::OutOfRange { dtype: DType::F8E4M3, index, value })?;
    }
    Ok(())
}

/// Largest f8 (e4m3); it has no infinity.
pub const F8_E4M3_MAX: f32 = 448.0;

/// The f8 (e4m3) nearest to a value, ties to even; `None` for values beyond the largest.
pub fn f8_e4m3(value: f32) -> Option<u8> {
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    const STEP_BELOW: f32 = 1.0 / 512.0;
    const LAST: u32 = 0x7e;
    const NAN: u8 = 0x7f;
    let sign = ((value.to_bits() >> 31) as u8) << 7;
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return Some(sign | NAN);
    }
    if magnitude < SMALLEST_NORMAL {
        return Some(sign | (magnitude / STEP_BELOW).round_ties_even() as u8);
    }
    // Exponent and mantissa are adjacent, so rounding the mantissa carries into the exponent.
    let bits = magnitude.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    let code = rounded - ((127 - 7) << 3);
    (code <= LAST).then_some(sign | code as u8)
}

#[cfg(test)]
mod tests {
    use crate::{DType, TensorError, decode_row, encode_row};

    fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes()];
        decode_row(dtype, bytes, &mut out).unwrap();
        out
    }

    #[test]
    fn eight_bit_floats() {
        let e4m3 = decode(DType::F8E4M3, &[0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0xb8, 0x80]);
        assert_eq!(e4m3, [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0, 1.0, 448.0, -1.0, -0.0]);
        assert!(decode(DType::F8E4M3, &[0x7f, 0xff]).iter().all(|v| v.is_nan()));
        let e5m2 = decode(DType::F8E5M2, &[0x3c, 0x7b, 0x01, 0xfc]);
        assert_eq!(e5m2, [1.0, 57344.0, 2f32.powi(-16), f32::NEG_INFINITY]);
    }

    #[test]
    fn eight_bit_floats_round_to_the_nearest() {
        let finite: Vec<u8> = (0..=255).filter(|b| b & 0x7f != 0x7f).collect();
        let values = decode(DType::F8E4M3, &finite);
        let mut back = vec![0; finite.len()];
        encode_row(DType::F8E4M3, &values, &mut back).unwrap();
        assert_eq!(back, finite);
        let mut out = [0; 6];
        let between = [1.0625, 1.1875, 1.0 / 1024.0, 15.0 / 1024.0, 463.0, -0.0];
        encode_row(DType::F8E4M3, &between, &mut out).unwrap();
        assert_eq!(decode(DType::F8E4M3, &out), [1.0, 1.25, 0.0, 1.0 / 64.0, 448.0, -0.0]);
        for beyond in [465.0, f32::INFINITY] {
            let error = encode_row(DType::F8E4M3, &[beyond], &mut out[..1]).unwrap_err();
            assert!(matches!(error, TensorError::OutOfRange { dtype: DType::F8E4M3, .. }));
        }
    }

    #[test]
    fn integers() {
        assert_eq!(decode(DType::I8, &[0xff, 0x7f]), [-1.0, 127.0]);
        assert_eq!(decode(DType::I16, &[0x00, 0x80]), [-32768.0]);
        assert_eq!(decode(DType::U32, &[0xff, 0xff, 0xff, 0x00]), [16777215.0]);
        assert_eq!(decode(DType::Bool, &[0, 1, 2]), [0.0, 1.0, 1.0]);
        assert_eq!(decode(DType::I64, &(-3i64).to_le_bytes()), [-3.0]);
        assert_eq!(decode(DType::F64, &0.5f64.to_le_bytes()), [0.5]);
    }

    #[test]
    fn narrowing_rounds_to_even_and_keeps_specials() {
        let ulp = 2f32.powi(-10);
        let values = [1.0, 1.0 + ulp / 2.0, 1.0 + 1.5 * ulp, f32::INFINITY, -0.0];
        let mut out = [0; 10];
        encode_row(DType::F16, &values, &mut out).unwrap();
        assert_eq!(decode(DType::F16, &out), [1.0, 1.0, 1.0 + 2.0 * ulp, f32::INFINITY, -0.0]);
        encode_row(DType::BF16, &[1.0 + 2f32.powi(-8), f32::NAN], &mut out[..4]).unwrap();
        let back = decode(DType::BF16, &out[..4]);
        assert!(back[0] == 1.0 && back[1].is_nan());
    }

    #[test]
    fn overflow_is_an_error() {
        let error = encode_row(DType::F16, &[1.0, 7e4], &mut [0; 4]).unwrap_err();
        assert_eq!(error, TensorError::OutOfRange { dtype: DType::F16, index: 1, value: 7e4 });
        assert!(encode_row(DType::BF16, &[f32::MAX], &mut [0; 2]).is_err());
        let text = encode_row(DType::I8, &[1.0], &mut [0; 1]).unwrap_err().to_string();
        assert!(text.contains("no encoder for i8") && text.contains("q6_k"), "{text}");
    }
}
