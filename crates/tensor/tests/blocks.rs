//! Block formats against golden blocks, and the encoders against plain rounding.

use half::f16;
use mambo_tensor::{DType, TensorError, decode_row, encode_row};
use safetensors::SafeTensors;

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quant/ggml-blocks.safetensors");
const ENCODED: [DType; 5] = [DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::Q4K, DType::Q6K];

/// A sum of uniform values is normal enough; the generator is a 64-bit linear congruence.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    fn row(&mut self, elems: usize, scale: f32) -> Vec<f32> {
        (0..elems).map(|_| self.gaussian() * scale).collect()
    }
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xa5; dtype.row_bytes(values.len()).unwrap()];
    encode_row(dtype, values, &mut bytes).unwrap();
    let mut out = vec![f32::NAN; values.len()];
    decode_row(dtype, &bytes, &mut out).unwrap();
    out
}

fn rmse(a: &[f32], b: &[f32]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

fn to_f16(v: f32) -> f32 {
    f16::from_f32(v).to_f32()
}

fn signed_max(x: &[f32]) -> f32 {
    x.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap()
}

fn nearest(v: f32, scale: f32, lo: f32, hi: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (v / scale).round().clamp(lo, hi) }
}

/// What a straightforward encoder stores: the largest value on the last code, everything else rounded.
fn plain_rounding(dtype: DType, values: &[f32]) -> Vec<f32> {
    let symmetric = |lo: f32, hi: f32| -> Vec<f32> {
        let block = |x: &[f32]| {
            let d = to_f16(signed_max(x) / lo);
            x.iter().map(|&v| d * nearest(v, d, lo, hi)).collect::<Vec<_>>()
        };
        values.chunks(32).flat_map(block).collect()
    };
    match dtype {
        DType::Q4_0 => symmetric(-8.0, 7.0),
        DType::Q5_0 => symmetric(-16.0, 15.0),
        DType::Q8_0 => symmetric(-127.0, 127.0),
        DType::Q6K => values.chunks(256).flat_map(plain_q6_k).collect(),
        DType::Q4K => values.chunks(256).flat_map(plain_q4_k).collect(),
        other => panic!("no plain rounding for {other}"),
    }
}

fn plain_q6_k(x: &[f32]) -> Vec<f32> {
    let scales: Vec<f32> = x.chunks(16).map(|s| signed_max(s) / -32.0).collect();
    let d = to_f16(signed_max(&scales) / -128.0);
    let sub = |(x, s): (&[f32], &f32)| {
        let scale = d * nearest(*s, d, -128.0, 127.0);
        x.iter().map(|&v| scale * nearest(v, scale, -32.0, 31.0)).collect::<Vec<_>>()
    };
    x.chunks(16).zip(&scales).flat_map(sub).collect()
}

fn plain_q4_k(x: &[f32]) -> Vec<f32> {
    let low = |s: &[f32]| s.iter().fold(0f32, |m, &v| m.min(v));
    let high = |s: &[f32]| s.iter().fold(0f32, |m, &v| m.max(v));
    let scales: Vec<f32> = x.chunks(32).map(|s| (high(s) - low(s)) / 15.0).collect();
    let mins: Vec<f32> = x.chunks(32).map(|s| -low(s)).collect();
    let (d, dmin) = (to_f16(high(&scales) / 63.0), to_f16(high(&mins) / 63.0));
    let sub = |(j, x): (usize, &[f32])| {
        let scale = d * nearest(scales[j], d, 0.0, 63.0);
        let min = dmin * nearest(mins[j], dmin, 0.0, 63.0);
        x.iter().map(|&v| scale * nearest(v + min, scale, 0.0, 15.0) - min).collect::<Vec<_>>()
    };
    x.chunks(32).enumerate().flat_map(sub).collect()
}

#[test]
fn golden_blocks_decode_exactly() {
    let file = std::fs::read(GOLDEN).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    let mut checked = 0;
    for dtype in DType::all() {
        let name = dtype.name().to_uppercase();
        let Ok(blocks) = golden.tensor(&format!("{name}.blocks")) else { continue };
        let values = golden.tensor(&format!("{name}.values")).unwrap();
        let (rows, elems) = (values.shape()[0], values.shape()[1]);
        let mut out = vec![0.0; elems];
        for row in 0..rows {
            let stride = blocks.shape()[1];
            decode_row(dtype, &blocks.data()[row * stride..][..stride], &mut out).unwrap();
            for (i, got) in out.iter().enumerate() {
                let at = (row * elems + i) * 4;
                let want = f32::from_le_bytes(values.data()[at..at + 4].try_into().unwrap());
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{name}[{row}, {i}]: {got} != {want}");
            }
        }
        checked += 1;
    }
    assert_eq!(2 * checked, golden.len(), "every type of the file");
    assert_eq!(checked, DType::all().filter(|d| d.is_quantized()).count() + 1, "every block format and bf16");
}

#[test]
fn golden_values_survive_encoding() {
    let file = std::fs::read(GOLDEN).unwrap();
    let golden = SafeTensors::deserialize(&file).unwrap();
    for (dtype, bound) in ENCODED.into_iter().zip([0.02, 0.01, 0.005, 0.05, 0.01]) {
        let tensor = golden.tensor(&format!("{}.values", dtype.name().to_uppercase())).unwrap();
        for row in tensor.data().as_chunks::<1024>().0 {
            let values: Vec<f32> = row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            let size = rmse(&values, &vec![0.0; values.len()]);
            // Values that lie on a grid already should be found again, or nearly.
            let error = rmse(&values, &round_trip(dtype, &values));
            assert!(error <= bound * size, "{dtype}: {error} of {size}");
        }
    }
}

#[test]
fn encoders_beat_plain_rounding() {
    let mut noise = Noise(7);
    for dtype in ENCODED {
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
        let gain = if dtype == DType::Q8_0 { 1.0 } else { 0.97 };
        assert!(ours < plain * gain, "{dtype}: {ours} against plain {plain}");
    }
}

#[test]
fn encoding_error_stays_below_half_a_step() {
    let mut noise = Noise(11);
    for (dtype, bound) in ENCODED.into_iter().zip([0.10, 0.05, 0.0065, 0.08, 0.022]) {
        let values = noise.row(4096, 1.0);
        let error = rmse(&values, &round_trip(dtype, &values));
        assert!(error < bound, "{dtype}: {error}");
    }
}

#[test]
fn awkward_blocks() {
    let mut noise = Noise(3);
    for dtype in ENCODED {
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
    for dtype in ENCODED {
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
            "{dtype}: blocks are alone"
        );
    }
}

#[test]
fn any_bytes_decode_and_wrong_lengths_do_not() {
    let mut noise = Noise(13);
    for dtype in DType::all() {
        let mut out = vec![0.0; 256];
        let mut bytes = vec![0; dtype.row_bytes(256).unwrap()];
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            bytes.fill(fill);
            decode_row(dtype, &bytes, &mut out).unwrap();
        }
        for _ in 0..50 {
            bytes.fill_with(|| (noise.uniform() * 256.0) as u8);
            decode_row(dtype, &bytes, &mut out).unwrap();
        }
        let short = decode_row(dtype, &bytes[1..], &mut out);
        assert!(matches!(short, Err(TensorError::RowBytes { .. })), "{dtype}: {short:?}");
        let odd = decode_row(dtype, &bytes, &mut out[1..]);
        assert!(odd.is_err(), "{dtype}: a value is missing");
    }
}

#[test]
fn what_cannot_be_stored_is_an_error() {
    for dtype in ENCODED {
        let mut out = vec![0; dtype.row_bytes(256).unwrap()];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [0.5; 256];
            values[200] = bad;
            let error = encode_row(dtype, &values, &mut out).unwrap_err();
            assert!(matches!(error, TensorError::NotFinite { index: 200, .. }), "{error}");
        }
        let mut values = [0.5; 256];
        values[100] = 1e20;
        let error = encode_row(dtype, &values, &mut out).unwrap_err();
        assert_eq!(error, TensorError::OutOfRange { dtype, index: 100, value: 1e20 });
        assert!(matches!(
            encode_row(dtype, &values[..10], &mut out),
            Err(TensorError::NotWholeBlocks { elems: 10, .. })
        ));
        assert!(matches!(decode_row(dtype, &out[1..], &mut values), Err(TensorError::RowBytes { .. })));
    }
    let text = decode_row(DType::Q4K, &[0; 143], &mut [0.0; 256]).unwrap_err().to_string();
    assert_eq!(text, "a q4_k row of 256 values takes 144 bytes, not 143");
}
