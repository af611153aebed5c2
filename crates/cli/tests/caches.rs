//! Cache types through the program: a checkpoint's scales for keys and values are honoured.

mod program;

use std::path::{Path, PathBuf};

use program::{scratch, works};
use serde_json::Value;

/// A quantised checkpoint whose scales for keys and values are these.
fn scaled(k: f32, v: f32) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant/modelopt-mixed");
    let weights = scratch("model.safetensors");
    let folder = weights.parent().unwrap();
    for file in ["config.json", "hf_quant_config.json"] {
        std::fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    for (name, value) in [("k_proj.k_scale", k), ("v_proj.v_scale", v)] {
        let (_, entry) = header.as_object().unwrap().iter().find(|(key, _)| key.ends_with(name)).unwrap();
        let at = data + entry["data_offsets"][0].as_u64().unwrap() as usize;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(&weights, bytes).unwrap();
    folder.to_owned()
}

fn logits(model: &Path, kv_type: &str) -> Vec<u8> {
    let ids: Vec<String> = (0..40).map(|i| (i * 11 % 90).to_string()).collect();
    let out = scratch("logits.safetensors");
    let (model, path) = (model.to_str().unwrap(), out.to_str().unwrap());
    works(&["logits", "-m", model, "--kv-type", kv_type, "--ids", &ids.join(","), "-o", path]);
    std::fs::read(&out).unwrap()
}

#[test]
fn scales_of_the_checkpoint_count_for_8_bit_floats_alone() {
    let (plain, odd, odd_keys) = (scaled(1.0, 1.0), scaled(0.013, 0.21), scaled(0.013, 1.0));
    assert!(logits(&plain, "f8") != logits(&odd, "f8"));
    assert!(logits(&odd_keys, "f8") != logits(&odd, "f8"));
    assert!(logits(&odd_keys, "f8/f16") == logits(&odd, "f8/f16"), "values in f16 need no scale");
    for other in ["f16", "q8_0"] {
        assert!(logits(&plain, other) == logits(&odd, other), "{other}");
    }
}
