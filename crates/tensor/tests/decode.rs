//! Decoding of golden blocks and of arbitrary bytes.

mod rounding;

use mambo_tensor::{DType, TensorError, decode_row};
use rounding::Noise;
use safetensors::SafeTensors;

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quant/ggml-blocks.safetensors");

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
    let blocks = DType::all().filter(|d| d.is_quantized() && d.ggml_id().is_some());
    assert_eq!(checked, blocks.count() + 1, "every block format of ggml and bf16");
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
