//! The fuzzer's first quantised models: kept current, read in full, and damaged in thousands of ways, the same
//! ones every time. They may be refused, but nothing panics, and what is accepted can be read.

mod common;

use std::fs;
use std::path::Path;

use common::tiny::{Kind, block_types, config, folder, gguf, gguf_of};
use mambo_checkpoint::{Checkpoint, ConfigFiles, parse_json};
use mambo_model::{bind, describe};
use mambo_tensor::DType;
use serde_json::{Value, json};

const ROUNDS: usize = 1500;

/// A folder as one run of bytes: config, sidecar and weights with a zero between them.
fn joined(config: Value, sidecar: Option<Value>, kind: impl Fn(&str) -> Kind) -> Vec<u8> {
    let stored = folder(config, kind);
    let sidecar = sidecar.map_or(String::new(), |value| value.to_string());
    let mut bytes = format!("{}\0{sidecar}\0", stored.config).into_bytes();
    bytes.extend(stored.safetensors());
    bytes
}

fn modelopt_mixed() -> Vec<u8> {
    let layers = json!({"backbone.layers.0.mixer.up_proj": {"quant_algo": "NVFP4", "group_size": 16}});
    let sidecar = json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}});
    joined(config("-E", 64), Some(sidecar), |module| match module.rsplit('.').next() {
        Some("lm_head" | "embeddings" | "gate") => Kind::Bf16,
        Some("down_proj") if module.contains("shared") => Kind::Fp8Rows,
        Some("down_proj") => Kind::Fp8,
        _ => Kind::Nvfp4,
    })
}

fn compressed_tensors() -> Vec<u8> {
    let mut config = config("M*", 32);
    config["quantization_config"] = json!({"quant_method": "compressed-tensors"});
    joined(config, None, |module| match module.rsplit('.').next() {
        Some("in_proj" | "q_proj") => Kind::PackedNvfp4,
        Some("out_proj" | "o_proj") => Kind::PackedMxfp4,
        Some("k_proj" | "v_proj") => Kind::Fp8Rows,
        _ => Kind::Bf16,
    })
}

fn mlx() -> Vec<u8> {
    let mut config = config("-*", 64);
    let module = "backbone.layers.0.mixer";
    config["quantization"] = json!({"bits": 4, "group_size": 32,
        format!("{module}.up_proj"): {"bits": 3, "group_size": 64},
        format!("{module}.down_proj"): {"bits": 4, "group_size": 16, "mode": "nvfp4"},
        "backbone.layers.1.mixer.q_proj": {"bits": 6}, "backbone.layers.1.mixer.k_proj": {"bits": 5},
        "backbone.layers.1.mixer.v_proj": {"bits": 2}, "lm_head": {"bits": 8}});
    joined(config, None, |module| match module.rsplit('.').next() {
        Some("up_proj") => Kind::Affine(3, 64, "BF16"),
        Some("down_proj") => Kind::Float(16),
        Some("q_proj") => Kind::Affine(6, 32, "F16"),
        Some("k_proj") => Kind::Affine(5, 32, "F16"),
        Some("v_proj") => Kind::Affine(2, 32, "F32"),
        Some("o_proj") => Kind::Float(32),
        Some("lm_head") => Kind::Affine(8, 32, "F16"),
        _ => Kind::Affine(4, 32, "F16"),
    })
}

fn gguf_blocks() -> Vec<u8> {
    gguf_of(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("seed-blocks.gguf"), 2, &block_types())
}

fn gguf_nvfp4() -> Vec<u8> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("seed-nvfp4.gguf");
    let scaled = ["blk.0.ffn_up.weight", "blk.1.ffn_up_exps.weight"];
    gguf(
        &path,
        &config("-E", 64),
        |name| if scaled.contains(&name) { DType::NVFP4 } else { DType::BF16 },
        &scaled,
    )
}

fn seeds() -> [(&'static str, Vec<u8>); 5] {
    [
        ("modelopt-mixed", modelopt_mixed()),
        ("compressed-tensors", compressed_tensors()),
        ("mlx", mlx()),
        ("blocks.gguf", gguf_blocks()),
        ("nvfp4.gguf", gguf_nvfp4()),
    ]
}

#[test]
fn seeds_are_current() {
    let seeds_folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/quantized"));
    for (name, bytes) in seeds() {
        let path = seeds_folder.join(name);
        if !path.exists() {
            fs::write(&path, &bytes).unwrap();
        }
        assert!(fs::read(&path).unwrap() == bytes, "{name} is stale: delete it and run this test again");
    }
}

/// Reads everything there is to read, as the fuzz target does.
fn read(bytes: &[u8]) -> Result<usize, String> {
    let checkpoint = match bytes.starts_with(b"GGUF") {
        true => Checkpoint::from_vec("m", bytes.to_vec()),
        false => {
            let mut parts = bytes.splitn(3, |&byte| byte == 0);
            let mut json = || parse_json(&String::from_utf8_lossy(parts.next().unwrap_or_default()));
            let beside = ConfigFiles { config: json()?, quant_config: json().ok(), ..Default::default() };
            Checkpoint::from_folder("m", beside, parts.next().unwrap_or_default().to_vec())
        }
    };
    let checkpoint = checkpoint.map_err(|e| e.to_string())?;
    let spec = describe(&checkpoint).map_err(|e| e.to_string())?;
    let table = bind(&checkpoint, &spec).map_err(|e| e.to_string())?;
    let values =
        table.iter().map(|weight| weight.to_f32().map(|values| values.len()).map_err(|e| e.to_string()));
    values.sum()
}

#[test]
fn seeds_are_read_in_full() {
    for (name, bytes) in seeds() {
        let values = read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(values > 1000 && bytes.len() < 80_000, "{name}: {values} values in {} bytes", bytes.len());
    }
}

#[test]
fn damaged_models_never_panic() {
    for (name, good) in seeds() {
        let (mut accepted, mut state) = (0, 1u64);
        let mut below = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n.max(1)
        };
        // Half of the damage goes where the words are.
        let words = good.len().min(6000);
        for _ in 0..ROUNDS {
            let mut bytes = good.clone();
            for _ in 0..=below(3) {
                let range = if below(2) == 0 { words } else { bytes.len() };
                let at = below(range);
                match below(4) {
                    0 => bytes[at] ^= 1 << below(8),
                    1 => bytes[at] = b"0123456789"[below(10)],
                    2 => bytes[at] = below(256) as u8,
                    _ => {
                        let end = bytes.len().min(at + 1 + below(3));
                        bytes.drain(at..end);
                    }
                }
            }
            accepted += usize::from(read(&bytes).is_ok());
        }
        assert!((ROUNDS / 50..ROUNDS * 49 / 50).contains(&accepted), "{name}: {accepted} accepted");
    }
}
