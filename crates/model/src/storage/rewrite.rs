//! Stored bytes become the engine's blocks: only the order of bits changes (`mambo_tensor::blocks::pairs`), or values
//! are widened exactly.
//!
//! Must not know names, files or shapes.

use std::borrow::Cow;

use super::squares::Squares;
use super::unpack::Packed;

use mambo_tensor::blocks::{E2M1, pairs};
use mambo_tensor::{Affine, DType, decode_row, encode_row};

/// How stored bytes become a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// They are the part.
    AsStored,
    /// `-exp(x)` of every value, as f32.
    NegExp,
    /// `1 + x` of every value, as f32.
    PlusOne,
    /// Rows and columns exchanged, of matrices stored with so many rows and columns.
    Transposed([usize; 2]),
    /// Pairs of neighbours in a byte and scales beside, as ggml's `nvfp4` blocks.
    Nvfp4,
    /// The same as bf16, which holds every product of code and scale: for rows that are not whole blocks.
    Nvfp4Wide,
    /// Pairs of neighbours in a byte and exponents beside, as ggml's `mxfp4` blocks.
    Mxfp4,
    /// Codes, scales and biases, group by group.
    Affine(Affine),
    /// Words of AWQ or GPTQ, their zeros and scales.
    Packed(Packed),
    /// FP8 with scales for squares, as bf16.
    Squares(Squares),
}

/// A scale that is NaN or negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BadScale {
    /// Which of the part's scales it is.
    pub position: usize,
}

impl Form {
    /// The part of these bytes; `beside` are the bytes of the tensors beside it. `dtype` is that of the stored
    /// values. The lengths were checked when the weight was bound.
    pub fn apply<'a>(
        self,
        dtype: DType,
        bytes: impl Into<Cow<'a, [u8]>>,
        beside: &[&[u8]],
    ) -> Result<Cow<'a, [u8]>, BadScale> {
        let bytes = bytes.into();
        let bad_position = match self {
            Form::Nvfp4 | Form::Nvfp4Wide => beside[0].iter().position(|&scale| is_bad_e4m3(scale)),
            Form::Mxfp4 => beside[0].iter().position(|&scale| scale == 0xff),
            Form::AsStored | Form::NegExp | Form::PlusOne | Form::Transposed(_) => None,
            Form::Affine(_) | Form::Packed(_) | Form::Squares(_) => None,
        };
        if let Some(position) = bad_position {
            return Err(BadScale { position });
        }
        Ok(Cow::Owned(match self {
            Form::AsStored => return Ok(bytes),
            Form::NegExp => mapped(dtype, &bytes, |x| -x.exp()),
            Form::PlusOne => mapped(dtype, &bytes, |x| 1.0 + x),
            Form::Transposed(stored) => transpose(dtype, &bytes, stored),
            Form::Nvfp4 => pairs::nvfp4_blocks(&bytes, beside[0]),
            Form::Nvfp4Wide => nvfp4_wide(&bytes, beside[0]),
            Form::Mxfp4 => pairs::mxfp4_blocks(&bytes, beside[0]),
            Form::Affine(affine) => affine_groups(affine, &bytes, beside[0], beside[1]),
            Form::Packed(packed) => packed.unpack(&bytes, beside),
            Form::Squares(squares) => squares.widen(&bytes, beside[0]),
        }))
    }

    /// What of it no type of ours holds, and what it is held as.
    pub fn decoded(self) -> Option<&'static str> {
        match self {
            Form::Packed(Packed { affine: None, .. }) => Some(
                "in groups that do not follow one another (`desc_act`) or fit no type are decoded to f16",
            ),
            Form::Squares(_) => Some("of FP8 with a scale for each square are decoded to bf16"),
            _ => None,
        }
    }
}

fn mapped(dtype: DType, bytes: &[u8], map: fn(f32) -> f32) -> Vec<u8> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_elems()];
    decode_row(dtype, bytes, &mut values).expect("the shape was checked when the weight was bound");
    values.iter().flat_map(|x| map(*x).to_le_bytes()).collect()
}

fn transpose(dtype: DType, bytes: &[u8], [rows, cols]: [usize; 2]) -> Vec<u8> {
    let size = dtype.block_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    for matrix in bytes.chunks_exact(rows * cols * size) {
        for col in 0..cols {
            (0..rows).for_each(|row| out.extend_from_slice(&matrix[(row * cols + col) * size..][..size]));
        }
    }
    out
}

/// NaN, and values below zero, which ggml's blocks would read without their sign.
fn is_bad_e4m3(byte: u8) -> bool {
    byte >= 0x7f && byte != 0x80
}

/// Two significant bits of a code and four of a scale fit the eight of a bf16, so nothing is rounded.
fn nvfp4_wide(codes: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut values = vec![0.0; scales.len()];
    decode_row(DType::F8E4M3, scales, &mut values).expect("one byte is one value");
    let mut out = Vec::with_capacity(codes.len() * 4);
    for (codes, scale) in codes.as_chunks::<8>().0.iter().zip(values) {
        for code in codes.iter().flat_map(|byte| [byte & 15, byte >> 4]) {
            let magnitude = E2M1[usize::from(code & 7)] * scale;
            let value = if code > 7 { -magnitude } else { magnitude };
            out.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
        }
    }
    out
}

/// Values of one type in another that holds them all.
pub(crate) fn widen(from: DType, bytes: &[u8], to: DType) -> Vec<u8> {
    let mut values = vec![0.0; bytes.len() / from.block_bytes() * from.block_elems()];
    decode_row(from, bytes, &mut values).expect("parts are whole blocks");
    let mut out = vec![0; values.len() * to.block_bytes()];
    encode_row(to, &values, &mut out).expect("a type that holds every value");
    out
}

fn affine_groups(affine: Affine, codes: &[u8], scales: &[u8], biases: &[u8]) -> Vec<u8> {
    let number = affine.scale().dtype().block_bytes();
    let mut out = Vec::with_capacity(codes.len() + scales.len() + biases.len());
    let groups = codes.chunks_exact(affine.code_bytes());
    for (codes, (scale, bias)) in groups.zip(scales.chunks_exact(number).zip(biases.chunks_exact(number))) {
        out.extend_from_slice(codes);
        out.extend_from_slice(scale);
        out.extend_from_slice(bias);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..n).map(|_| next()).collect()
    }

    fn decode(dtype: DType, bytes: &[u8], elems: usize) -> Vec<f32> {
        let mut values = vec![0.0; elems];
        decode_row(dtype, bytes, &mut values).unwrap();
        values
    }

    /// Codes in the order of files: neighbours share a byte.
    fn code(codes: &[u8], i: usize) -> f32 {
        E2M1[usize::from(codes[i / 2] >> (i % 2 * 4) & 15)]
    }

    #[test]
    fn nvfp4_keeps_every_value_in_both_forms() {
        let codes = noise(96, 1);
        let scales: Vec<u8> = noise(12, 2).iter().map(|s| s % 0x7f).collect();
        let wide = decode(DType::F8E4M3, &scales, 12);
        let want: Vec<f32> = (0..192).map(|i| code(&codes, i) * wide[i / 16]).collect();
        for (form, dtype) in [(Form::Nvfp4, DType::NVFP4), (Form::Nvfp4Wide, DType::BF16)] {
            let part = form.apply(DType::U8, &codes, &[&scales]).unwrap();
            assert_eq!(decode(dtype, &part, 192), want, "{form:?}");
        }
    }

    #[test]
    fn bad_scales_are_refused() {
        let mut scales = [0x38, 0x80, 0, 0x7e];
        assert!(Form::Nvfp4.apply(DType::U8, &[0x11; 32], &[&scales]).is_ok());
        for bad in [0x7f, 0xff, 0x81, 0xb8] {
            scales[2] = bad;
            for form in [Form::Nvfp4, Form::Nvfp4Wide] {
                assert_eq!(form.apply(DType::U8, &[0; 32], &[&scales]), Err(BadScale { position: 2 }));
            }
        }
        let bad = Form::Mxfp4.apply(DType::U8, &[0; 32], &[&[127, 255]]);
        assert_eq!(bad, Err(BadScale { position: 1 }));
    }

    #[test]
    fn mxfp4_keeps_every_value() {
        let codes = noise(48, 3);
        let scales = [127, 125, 130];
        let want: Vec<f32> =
            (0..96).map(|i| code(&codes, i) * 2f32.powi(i32::from(scales[i / 32]) - 127)).collect();
        let part = Form::Mxfp4.apply(DType::U8, &codes, &[&scales]).unwrap();
        assert_eq!(decode(DType::MXFP4, &part, 96), want);
    }

    #[test]
    fn widening_keeps_every_value() {
        let every: Vec<u8> = (0..=255).collect();
        let plain = decode(DType::F8E4M3, &every, 256);
        let wide = decode(DType::BF16, &widen(DType::F8E4M3, &every, DType::BF16), 256);
        assert!(plain.iter().zip(&wide).all(|(a, b)| a == b || (a.is_nan() && b.is_nan())));
        // Every code under every scale that is one.
        let blocks: Vec<u8> =
            (0..127u8).flat_map(|s| [[s; 4].as_slice(), &noise(32, u64::from(s))].concat()).collect();
        let plain = decode(DType::NVFP4, &blocks, 127 * 64);
        assert_eq!(decode(DType::BF16, &widen(DType::NVFP4, &blocks, DType::BF16), 127 * 64), plain);
        let blocks: Vec<u8> =
            (0..255u8).flat_map(|e| [&[e][..], &noise(16, u64::from(e))].concat()).collect();
        let plain = decode(DType::MXFP4, &blocks, 255 * 32);
        assert_eq!(decode(DType::BF16, &widen(DType::MXFP4, &blocks, DType::BF16), 255 * 32), plain);
    }
}
