//! The encoders: never worse than plain rounding, the same bytes for the same values, weights respected.

mod rounding;

use mambo_tensor::{DType, TensorError, decode_row, encode_row, encode_row_weighted};
use rounding::{Noise, plain_rounding};
use safetensors::SafeTensors;

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quant/ggml-blocks.safetensors");

fn encoded() -> impl Iterator<Item = DType> {
    DType::all().filter(|d| d.is_quantized() && d.is_encodable())
}

fn encode(dtype: DType, values: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xa5; dtype.row_bytes(values.len()).unwrap()];
    encode_row_weighted(dtype, values, importance, &mut bytes).unwrap();
    bytes
}

fn decode(dtype: DType, bytes: &[u8], elems: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elems];
    decode_row(dtype, bytes, &mut out).unwrap();
    out
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    decode(dtype, &encode(dtype, values, None), values.len())
}

fn weighted_error(a: &[f32], b: &[f32], w: &[f32]) -> f64 {
    a.iter().zip(b).zip(w).map(|((x, y), w)| f64::from(*w) * f64::from(x - y).powi(2)).sum()
}

fn rmse(a: &[f32], b: &[f32]) -> f64 {
    (weighted_error(a, b, &vec![1.0; a.len()]) / a.len() as f64).sqrt()
}

/// Error bounds: of golden values encoded again, relative to their RMS; of noise, relative to sigma.
fn bounds(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::Q4_0 => (1e-5, 0.10),
        DType::Q4_1 => (0.005, 0.08),
        DType::Q5_0 => (1e-5, 0.05),
        DType::Q5_1 => (0.02, 0.04),
        DType::Q8_0 => (0.005, 0.0065),
        DType::Q2K => (0.15, 0.28),
        DType::Q3K => (0.03, 0.15),
        DType::Q4K => (0.04, 0.08),
        DType::Q5K => (0.02, 0.04),
        DType::Q6K => (0.015, 0.022),
        DType::IQ4_NL => (0.06, 0.08),
        DType::IQ4_XS => (0.03, 0.08),
        DType::MXFP4 => (1e-6, 0.12),
        DType::NVFP4 => (0.01, 0.10),
        // What whole codes with a scale reach, whatever their width.
        other => (0.15, 2.4 * (-other.bits_per_weight()).exp2()),
    }
}

#[test]
fn golden_values_survive_encoding() {
    let file = std::fs::read(GOLDEN).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    for dtype in encoded() {
        let bound = bounds(dtype).0;
        let tensor = golden.tensor(&format!("{}.values", dtype.name().to_uppercase())).unwrap();
        for row in tensor.data().as_chunks::<1024>().0 {
            let values: Vec<f32> = row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let size = rmse(&values, &vec![0.0; values.len()]);
            // Readers decode the scale 0xff as 480, but a writer should not use it.
            if dtype == DType::NVFP4 && values.iter().any(|v| v.abs() > 6.0 * 448.0) {
                continue;
            }
            // Values that already lie on a grid should be reproduced, or nearly.
            let error = rmse(&values, &round_trip(dtype, &values));
            assert!(error <= bound * size, "{dtype}: {error} of {size}");
        }
    }
}

#[test]
fn encoders_beat_plain_rounding() {
    let mut noise = Noise(7);
    for dtype in encoded() {
        let (mut ours, mut plain) = (0.0, 0.0);
        for scale in [1e-3, 0.02, 1.0, 30.0] {
            for _ in 0..16 {
                let values = noise.row(1024, scale);
                let a = rmse(&values, &round_trip(dtype, &values)) / f64::from(scale);
                let b = rmse(&values, &plain_rounding(dtype, &values)) / f64::from(scale);
                assert!(a <= b * 1.0001, "{dtype} at {scale}: {a} against plain {b}");
                ours += a / 64.0;
                plain += b / 64.0;
            }
        }
        println!("{dtype}: rmse {ours:.5} of sigma, plain rounding {plain:.5}");
        let gain = if matches!(dtype, DType::Q8_0 | DType::MXFP4) { 0.98 } else { 0.97 };
        assert!(ours < plain * gain, "{dtype}: {ours} against plain {plain}");
    }
}

#[test]
fn encoding_error_stays_below_half_a_step() {
    let mut noise = Noise(11);
    for dtype in encoded() {
        let bound = bounds(dtype).1;
        let values = noise.row(4096, 1.0);
        let error = rmse(&values, &round_trip(dtype, &values));
        assert!(error < bound, "{dtype}: {error}");
    }
}

#[test]
fn awkward_blocks() {
    let mut noise = Noise(3);
    for dtype in encoded() {
        assert_eq!(round_trip(dtype, &[0.0; 256]), [0.0; 256], "{dtype}: zeros");
        assert_eq!(round_trip(dtype, &[-0.0; 256]), [0.0; 256], "{dtype}: negative zeros");
        for value in [1.0, -1.0, 3e-6, 1e-9, 1e-30, f32::from_bits(1), 1000.0] {
            let values = [value; 256];
            let plain = rmse(&values, &plain_rounding(dtype, &values));
            let ours = rmse(&values, &round_trip(dtype, &values));
            assert!(
                ours <= plain.max(f64::from(value.abs()) * 0.02),
                "{dtype} of {value}: {ours}, plain {plain}"
            );
        }
        let mut outlier = noise.row(256, 0.01);
        outlier[77] = 5.0;
        let plain = rmse(&outlier, &plain_rounding(dtype, &outlier));
        assert!(rmse(&outlier, &round_trip(dtype, &outlier)) <= plain * 1.0001, "{dtype}: outlier");
        let positive: Vec<f32> = noise.row(256, 1.0).iter().map(|v| v.abs() + 4.0).collect();
        let plain = rmse(&positive, &plain_rounding(dtype, &positive));
        assert!(rmse(&positive, &round_trip(dtype, &positive)) <= plain * 1.0001, "{dtype}: one sign");
    }
}

#[test]
fn the_same_values_give_the_same_bytes() {
    let values = Noise(5).row(512, 0.1);
    for dtype in encoded() {
        let bytes = |fill: u8, values: &[f32]| {
            let mut out = vec![fill; dtype.row_bytes(values.len()).unwrap()];
            encode_row(dtype, values, &mut out).unwrap();
            out
        };
        assert_eq!(bytes(0, &values), bytes(0xff, &values), "{dtype}: no bit of the old bytes is left");
        let (first, second) = values.split_at(256);
        assert_eq!(
            bytes(0, &values),
            [bytes(0, first), bytes(0, second)].concat(),
            "{dtype}: blocks are independent"
        );
    }
}

#[test]
fn what_cannot_be_stored_is_an_error() {
    for dtype in encoded() {
        let mut out = vec![0; dtype.row_bytes(256).unwrap()];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [0.5; 256];
            values[200] = bad;
            let error = encode_row(dtype, &values, &mut out).unwrap_err();
            assert!(matches!(error, TensorError::NotFinite { index: 200, .. }), "{error}");
        }
        let mut values = [0.5; 256];
        values[100] = 1e20;
        let result = encode_row(dtype, &values, &mut out);
        if dtype == DType::MXFP4 {
            assert_eq!(result, Ok(()), "its scale covers the range of f32");
        } else {
            assert_eq!(result, Err(TensorError::OutOfRange { dtype, index: 100, value: 1e20 }));
        }
        assert!(matches!(
            encode_row(dtype, &values[..10], &mut out),
            Err(TensorError::NotWholeBlocks { elems: 10, .. })
        ));
        assert!(matches!(decode_row(dtype, &out[1..], &mut values), Err(TensorError::RowBytes { .. })));
    }
    let text = decode_row(DType::Q4K, &[0; 143], &mut [0.0; 256]).unwrap_err().to_string();
    assert_eq!(text, "a q4_k row of 256 values takes 144 bytes, not 143");
}

#[test]
fn equal_weights_change_nothing() {
    let values = Noise(17).row(512, 0.1);
    for dtype in encoded() {
        let plain = encode(dtype, &values, None);
        for weight in [1.0, 0.0, 3e-30, 2e30] {
            assert_eq!(plain, encode(dtype, &values, Some(&[weight; 512])), "{dtype}: all {weight}");
        }
    }
}

#[test]
fn weights_are_respected() {
    let mut noise = Noise(19);
    for dtype in encoded() {
        let (mut ours, mut even) = (0.0, 0.0);
        for _ in 0..32 {
            let values = noise.row(512, 0.02);
            // Activations differ in strength by column: some count a hundred times as much as others.
            let weights: Vec<f32> = (0..512).map(|_| noise.gaussian().powi(4)).collect();
            let decoded = |w| decode(dtype, &encode(dtype, &values, w), 512);
            ours += weighted_error(&values, &decoded(Some(&weights)), &weights);
            even += weighted_error(&values, &decoded(None), &weights);
        }
        println!("{dtype}: weighted error {:.3} of the unweighted encoding's", ours / even);
        assert!(ours < even * 0.995, "{dtype}: {ours} against {even}");
    }
}

#[test]
fn weights_must_fit() {
    let (values, mut out) = ([0.5; 256], [0; 1024]);
    for dtype in encoded() {
        let out = &mut out[..dtype.row_bytes(256).unwrap()];
        let short = encode_row_weighted(dtype, &values, Some(&[1.0; 255]), out);
        assert_eq!(short, Err(TensorError::ImportanceLength { elems: 256, weights: 255 }));
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let mut weights = [1.0; 256];
            weights[7] = bad;
            let error = encode_row_weighted(dtype, &values, Some(&weights), out).unwrap_err();
            assert!(matches!(error, TensorError::BadImportance { index: 7, .. }), "{error}");
        }
    }
}

#[test]
fn sparse_weights_still_give_finite_values() {
    let mut noise = Noise(29);
    for dtype in encoded() {
        for _ in 0..50 {
            let values = noise.row(256, 1.0);
            let weights: Vec<f32> =
                (0..256).map(|_| if noise.uniform() < 0.03 { 1.0 } else { 0.0 }).collect();
            let decoded = decode(dtype, &encode(dtype, &values, Some(&weights)), 256);
            assert!(decoded.iter().all(|v| v.abs() < 100.0), "{dtype}");
        }
    }
}
