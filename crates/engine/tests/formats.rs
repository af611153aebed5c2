//! Formats that no golden file has, made by the test: whatever the weights are stored in, the CPU backend and
//! the plain reference find the same logits, and every instruction set the same bits.

#[path = "../../model/tests/common/mod.rs"]
mod common;
mod loaded;

use std::path::Path;

use common::stored::Stored;
use common::tiny::{Kind, block_types, config, folder, gguf, gguf_of, push};
use loaded::{On, Setup, load_folder};
use mambo_checkpoint::Checkpoint;
use mambo_engine::ScoreOptions;
use mambo_tensor::DType;
use serde_json::json;

fn logits(path: &Path, on: On, ids: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut keep = |rows: mambo_engine::ScoredRows| logits.extend_from_slice(rows.logits);
    let options = ScoreOptions { chunk: 64, companions: 0, ..Default::default() };
    load_folder(path, on, Setup::default()).score(ids, options, &mut keep).expect("the text fits");
    logits
}

/// The largest difference to the reference as a share of its largest logit; instruction sets must agree.
fn off_reference(path: &Path, ids: &[u32]) -> f32 {
    let want = logits(path, On::Reference, ids);
    let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(largest.is_finite() && largest > 0.0, "{}: logits up to {largest}", path.display());
    let mut first: Option<Vec<u32>> = None;
    let mut off = 0f32;
    for on in On::all().into_iter().filter(|on| !matches!(on, On::Reference)) {
        let got = logits(path, on, ids);
        assert!(got.iter().all(|v| v.is_finite()), "{}: {on:?}", path.display());
        off = got.iter().zip(&want).fold(off, |m, (a, b)| m.max((a - b).abs() / largest));
        let bits: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
        assert!(
            *first.get_or_insert_with(|| bits.clone()) == bits,
            "{}: other bits on {on:?}",
            path.display()
        );
    }
    off
}

const IDS: [u32; 12] = [1, 3, 0, 2, 2, 1, 0, 3, 3, 1, 2, 0];

/// One layer whose activations lose nothing when they become 8 bits wide: what is left is the order of sums.
#[test]
fn every_block_type_multiplies_golden_blocks() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-type.gguf");
    let mut config = config("-", 256);
    config["intermediate_size"] = json!(40);
    for dtype in block_types() {
        gguf(&path, &config, |name| if name.contains("ffn_up") { dtype } else { DType::BF16 }, &[]);
        let off = off_reference(&path, &IDS);
        assert!(off < 1e-5, "{dtype}: logits off by {off}");
    }
}

/// All of them in one file, eighteen layers deep. Activations stay floats in the reference, and what rounding
/// them to 8 bits changes grows from layer to layer; that each product is right is the test above.
#[test]
fn a_file_with_every_block_type_runs() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("every-type.gguf");
    gguf_of(&path, 16, &block_types());
    let off = off_reference(&path, &IDS);
    assert!(off < 0.1, "logits off by {off}");
}

#[test]
fn experts_of_different_types_run() {
    let mut stored = Stored::fixture("modelopt-mixed");
    let kinds = [(1, Kind::Fp8), (2, Kind::Bf16), (5, Kind::Fp8Rows), (7, Kind::PackedMxfp4)];
    for (e, kind) in kinds {
        for side in ["up", "down"] {
            let module = format!("backbone.layers.1.mixer.experts.{e}.{side}_proj");
            for suffix in ["weight", "weight_scale", "weight_scale_2"] {
                stored.remove(&format!("{module}.{suffix}"));
            }
            push(&mut stored, &module, 64, 64, kind);
        }
    }
    let off = off_reference(&stored.write("run-mixed-experts"), &IDS);
    assert!(off < 1e-4, "logits off by {off}");
}

/// The golden logits do not change when each row says the scale of its tensor, and rows may have their own.
#[test]
fn fp8_with_a_scale_for_each_row_runs() {
    let mut stored = Stored::fixture("modelopt-fp8");
    for t in stored.tensors.clone().iter().filter(|t| t.name.ends_with(".weight_scale")) {
        let rows = stored.get(&t.name.replace(".weight_scale", ".weight")).shape[0];
        let scale = stored.get(&t.name);
        (scale.shape, scale.bytes) = (vec![rows, 1], t.bytes.repeat(rows));
    }
    let same = stored.write("run-fp8-same");
    let golden = loaded::quantized_folder("modelopt-fp8");
    let file = Checkpoint::open(&golden.join("expected.safetensors")).unwrap();
    let ids = file.read(file.tensor("input_ids").unwrap()).unwrap();
    let ids: Vec<u32> =
        ids.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    let want = file.read(file.tensor("logits").unwrap()).unwrap();
    let want = want.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    for on in On::all() {
        let off =
            logits(&same, on, &ids).iter().zip(want.clone()).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(off <= 2e-3, "{on:?}: logits off by {off}");
    }
    for t in stored.tensors.iter_mut().filter(|t| t.name.ends_with(".weight_scale")) {
        for (row, scale) in t.bytes.chunks_exact_mut(4).enumerate() {
            let value = f32::from_le_bytes((&*scale).try_into().unwrap()) * (0.5 + (row % 7) as f32 / 6.0);
            scale.copy_from_slice(&value.to_le_bytes());
        }
    }
    let off = off_reference(&stored.write("run-fp8-rows"), &ids);
    assert!(off < 1e-4, "logits off by {off}");
}

#[test]
fn mlx_of_every_width_runs() {
    for (bits, scale) in [(2, "F16"), (3, "BF16"), (4, "F32"), (5, "F16"), (6, "BF16"), (8, "F16")] {
        let mut config = config("M*E-", 64);
        for key in ["moe_intermediate_size", "moe_shared_expert_intermediate_size"] {
            config[key] = json!(64);
        }
        config["quantization"] = json!({"bits": bits, "group_size": 32});
        let kind = |module: &str| match module.ends_with("gate") {
            true => Kind::Bf16,
            false => Kind::Affine(bits, 32, scale),
        };
        let off = off_reference(&folder(config, kind).write(&format!("run-mlx-{bits}")), &IDS);
        assert!(off < 1e-4, "{bits} bits: logits off by {off}");
    }
}
