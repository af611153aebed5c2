//! Models of a few kilobytes in every quantised form: the fuzzer's first inputs.

use std::path::Path;

use mambo_checkpoint::{Checkpoint, GgufMetadata, GgufTensor, GgufWriter};
use mambo_model::{Family, ModelSpec};
use mambo_tensor::{DType, Shape, decode_row};
use serde_json::{Value, json};

use super::stored::{Stored, Tensor};

/// How a matrix is stored.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Bf16,
    /// ModelOpt: codes, scales of 16, a scale of all.
    Nvfp4,
    /// ModelOpt: codes and a scale of all.
    Fp8,
    /// A scale for each row.
    Fp8Rows,
    /// compressed-tensors: packed codes, scales of 16, the reciprocal of a scale of all.
    PackedNvfp4,
    /// compressed-tensors: packed codes and exponents.
    PackedMxfp4,
    /// MLX: bits and group of codes, with this type of scale.
    Affine(usize, usize, &'static str),
    /// MLX: float codes in groups.
    Float(usize),
}

/// Random bytes, the same on every machine.
pub fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// The sizes of a fixture, cut down; `pattern` is the schedule.
pub fn config(pattern: &str, hidden: usize) -> Value {
    json!({"model_type": "nemotron_h", "hybrid_override_pattern": pattern, "hidden_size": hidden, "vocab_size": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "mamba_num_heads": 2,
        "mamba_head_dim": 16, "ssm_state_size": 4, "n_groups": 1, "conv_kernel": 2, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 32,
        "intermediate_size": 64, "layer_norm_epsilon": 1e-5})
}

/// Fills a folder: `kind` chooses the form of each module by its path.
pub fn folder(config: Value, kind: impl Fn(&str) -> Kind) -> Stored {
    let spec = ModelSpec::from_config("config.json", &config, None).unwrap();
    let mut stored = Stored { config, sidecar: None, tensors: Vec::new() };
    for weight in spec.weights() {
        let name = Family::of(&spec).tensor_name(weight.place, weight.part);
        match (name.strip_suffix(".weight"), weight.shape.as_slice()) {
            (Some(module), &[rows, cols]) if !module.ends_with("conv1d") => {
                push(&mut stored, module, rows, cols, kind(module));
            }
            (Some(module), &[experts, rows, cols]) => {
                for e in 0..experts {
                    let module = module.replace("{e}", &e.to_string());
                    push(&mut stored, &module, rows, cols, kind(&module));
                }
            }
            (_, shape) => {
                let elems = shape.iter().product::<usize>();
                stored.add(&name, "BF16", shape, [0, 0x3f].repeat(elems));
            }
        }
    }
    stored
}

/// Adds a module's tensors.
pub fn push(stored: &mut Stored, module: &str, rows: usize, cols: usize, kind: Kind) {
    let codes = |n: usize| noise(n, (rows * 31 + cols + module.len()) as u64);
    // Scales of eight bits between 1/4 and 4.
    let scales = |n: usize| noise(n, 7).into_iter().map(|b| 0x28 + b % 32).collect::<Vec<u8>>();
    let half = 0.5f32.to_le_bytes().to_vec();
    let mut add = |suffix: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
        let (name, dtype, shape) = (format!("{module}.{suffix}"), dtype.to_owned(), shape.to_vec());
        stored.tensors.push(Tensor { name, dtype, shape, bytes });
    };
    match kind {
        Kind::Bf16 => {
            let bytes = codes(rows * cols).iter().flat_map(|b| [b & 0xf0, 0x3c | b << 7]).collect();
            add("weight", "BF16", &[rows, cols], bytes);
        }
        Kind::Nvfp4 => {
            add("weight", "U8", &[rows, cols / 2], codes(rows * cols / 2));
            add("weight_scale", "F8_E4M3", &[rows, cols / 16], scales(rows * cols / 16));
            add("weight_scale_2", "F32", &[], half);
        }
        Kind::Fp8 | Kind::Fp8Rows => {
            let bytes = codes(rows * cols).iter().map(|b| b & 0xbf).collect();
            add("weight", "F8_E4M3", &[rows, cols], bytes);
            match kind {
                Kind::Fp8 => add("weight_scale", "F32", &[], half),
                _ => add("weight_scale", "BF16", &[rows, 1], [0, 0x3f].repeat(rows)),
            }
        }
        Kind::PackedNvfp4 => {
            add("weight_packed", "U8", &[rows, cols / 2], codes(rows * cols / 2));
            add("weight_scale", "F8_E4M3", &[rows, cols / 16], scales(rows * cols / 16));
            add("weight_global_scale", "F32", &[1], 2f32.to_le_bytes().to_vec());
        }
        Kind::PackedMxfp4 => {
            add("weight_packed", "U8", &[rows, cols / 2], codes(rows * cols / 2));
            add("weight_scale", "U8", &[rows, cols / 32], vec![126; rows * cols / 32]);
        }
        Kind::Affine(bits, group, scale) => {
            let numbers = rows * cols / group;
            let bytes: &[u8] = match scale {
                "F32" => &[0, 0, 0, 0x3d],
                "BF16" => &[0, 0x3d],
                _ => &[0, 0x28],
            };
            add("weight", "U32", &[rows, cols * bits / 32], codes(rows * cols * bits / 8));
            add("scales", scale, &[rows, cols / group], bytes.repeat(numbers));
            add("biases", scale, &[rows, cols / group], bytes.repeat(numbers));
        }
        Kind::Float(group) => {
            let exponents = if group == 32 { vec![126; rows * cols / 32] } else { scales(rows * cols / 16) };
            add("weight", "U32", &[rows, cols / 8], codes(rows * cols / 2));
            add("scales", "U8", &[rows, cols / group], exponents);
        }
    }
}

/// Golden blocks of any type with values of ordinary size, one after the other and again from the first.
pub fn blocks(dtype: DType, elems: usize) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant/ggml-blocks.safetensors");
    let golden = Checkpoint::from_vec("golden", std::fs::read(path).unwrap()).unwrap();
    let stored = golden.tensor(&format!("{}.blocks", dtype.name().to_uppercase())).unwrap();
    let mut values = vec![0.0; dtype.block_elems()];
    let mut is_ordinary = |block: &&[u8]| {
        decode_row(dtype, block, &mut values).unwrap();
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        values.iter().all(|v| v.is_finite()) && (1e-3..8.0).contains(&largest)
    };
    let stored = golden.read(stored).unwrap();
    let blocks = stored.chunks_exact(dtype.block_bytes());
    let ordinary: Vec<&[u8]> = blocks.filter(|block| is_ordinary(block)).collect();
    assert!(ordinary.len() * values.len() >= 256, "{} ordinary blocks of {dtype}", ordinary.len());
    ordinary.into_iter().cycle().take(elems / values.len()).flatten().copied().collect()
}

/// Values for a tensor that is never quantised.
fn small(name: &str, elems: usize) -> Vec<u8> {
    let value = |byte: u8| match name.rsplit_once('.') {
        Some((_, "ssm_a")) => -0.5,
        _ if name.contains("norm") => 1.0,
        Some((_, "scale")) => 0.5,
        _ => (f32::from(byte) - 127.5) / 256.0,
    };
    noise(elems, elems as u64).into_iter().flat_map(|byte| value(byte).to_le_bytes()).collect()
}

/// Every block type of ggml's.
pub fn block_types() -> Vec<DType> {
    DType::all().filter(|d| d.is_quantized() && d.ggml_id().is_some()).collect()
}

/// A file in which these types occur: one tensor after the other, those whose rows are whole blocks of any of
/// them. The others are `width` wide.
pub fn gguf_of(path: &Path, width: usize, types: &[DType]) -> Vec<u8> {
    let mut config = config(&format!("M*E{}", "-".repeat(15)), 256);
    let sizes =
        ["head_dim", "mamba_head_dim", "moe_intermediate_size", "moe_shared_expert_intermediate_size"];
    for key in sizes.into_iter().chain(["intermediate_size"]) {
        config[key] = json!(width);
    }
    // All experts are chosen: between two that are almost equal, rounding would choose.
    config["num_experts_per_tok"] = config["n_routed_experts"].clone();
    let next = std::cell::Cell::new(0);
    let narrow = ["ssm_out", "attn_output", "ffn_down"];
    let dtype = |name: &str| match narrow.iter().any(|part| name.contains(part)) {
        true => DType::BF16,
        false => types[next.replace(next.get() + 1) % types.len()],
    };
    let bytes = gguf(path, &config, dtype, &["blk.2.ffn_up_exps.weight"]);
    assert!(next.get() >= types.len(), "{} tensors cannot be of {} types", next.get(), types.len());
    bytes
}

/// A GGUF file of the config's model; `dtype` gives the type of a tensor that may have one by its name.
/// `scaled` tensors get a factor beside them.
pub fn gguf(path: &Path, config: &Value, dtype: impl Fn(&str) -> DType, scaled: &[&str]) -> Vec<u8> {
    let spec = ModelSpec::from_config("config.json", config, None).unwrap();
    let mut metadata = GgufMetadata::new("tiny.gguf");
    for (key, value) in spec.gguf_metadata().unwrap() {
        metadata.set(key, value);
    }
    let mut tensors = Vec::new();
    for t in spec.gguf_tensors() {
        let dtype = if t.quantizable { dtype(&t.name) } else { DType::F32 };
        if scaled.contains(&t.name.as_str()) {
            let count = if t.shape.len() == 3 { t.shape[0] } else { 1 };
            let name = t.name.replace(".weight", ".scale");
            tensors.push(GgufTensor { name, dtype: DType::F32, shape: Shape::new(&[count]).unwrap() });
        }
        tensors.push(GgufTensor { name: t.name, dtype, shape: Shape::new(&t.shape).unwrap() });
    }
    let mut writer = GgufWriter::create(path, &metadata, &tensors).unwrap();
    for t in &tensors {
        let bytes = match t.dtype {
            DType::F32 => small(&t.name, t.shape.elems()),
            // Plus and minus one: whatever a norm makes of these rows, eight bits hold it exactly.
            DType::BF16 if t.name == "token_embd.weight" => {
                noise(t.shape.elems(), 3).iter().flat_map(|byte| [0x80, 0x3f | byte & 0x80]).collect()
            }
            dtype => blocks(dtype, t.shape.elems()),
        };
        writer.write(&t.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}
