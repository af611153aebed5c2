//! The fuzzer's first models of every family, as documents of headers: kept readable, and changed in thousands of ways,
//! the same ones every time. They may be refused with a sentence, but nothing panics.

#[path = "../../../fuzz/src/json_changes.rs"]
mod json_changes;
#[path = "../../../fuzz/src/stored_model.rs"]
mod stored_model;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use mambo_checkpoint::{Checkpoint, GgufArray, GgufValue, parse_json};
use mambo_model::{BuildOptions, FAMILIES, ModelError, ModelSpec, bind, describe};
use serde_json::{Map, Value, json};

/// Fixtures whose configs have most to say, at least one of each family.
const TAKEN: [&str; 16] = [
    "bamba",
    "falcon-h1",
    "gemma3",
    "gemma3-nested-hub",
    "gpt-oss-hub",
    "granite-h-hub",
    "lfm2-moe-hub",
    "llama",
    "mamba2",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "qwen3-next-hub",
    "qwen3-5-hub",
    "smollm3-hub",
];
const ROUNDS: u64 = 300;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A fixture as one document.
fn folder(fixture: &str) -> Value {
    let folder = project().join("tests/fixtures/families").join(fixture);
    let config = parse_json(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let weights = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    let tensor = |(name, about): (&String, &Value)| (name.clone(), json!([about["dtype"], about["shape"]]));
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(tensor);
    json!({"config": config, "tensors": tensors.collect::<Map<_, _>>()})
}

/// The same model as a GGUF file, where its family is written as one.
fn gguf(document: &Value) -> Option<Value> {
    let spec = ModelSpec::from_config("config.json", &document["config"], None).unwrap();
    let metadata = spec.gguf_metadata().ok()?;
    let metadata = metadata.into_iter().map(|(key, value)| (key, as_json(&value)));
    let tensors = spec.gguf_tensors().into_iter().map(|t| (t.name, json!(["f32", t.shape])));
    Some(json!({"metadata": metadata.collect::<Map<_, _>>(), "tensors": tensors.collect::<Map<_, _>>()}))
}

fn as_json(value: &GgufValue) -> Value {
    match value {
        GgufValue::String(text) => json!(text),
        GgufValue::Bool(value) => json!(value),
        GgufValue::F32(value) => json!(value),
        GgufValue::Array(GgufArray::Bool(values)) => json!(values),
        GgufValue::Array(GgufArray::F32(values)) => json!(values),
        GgufValue::Array(values) => {
            json!(values.integers().unwrap().iter().map(|n| *n as i64).collect::<Vec<_>>())
        }
        other => json!(other.as_integer().unwrap() as i64),
    }
}

static SEEDS: LazyLock<Vec<(String, Value)>> = LazyLock::new(seeds);

/// The seeds as they lie in the fuzzer's folder, where those that are missing are made.
fn seeds() -> Vec<(String, Value)> {
    let folder_of_seeds = project().join("fuzz/seeds/families");
    let kept = |name: String, make: &dyn Fn() -> Option<Value>| {
        let path = folder_of_seeds.join(&name);
        if !path.exists() {
            fs::write(&path, make()?.to_string()).unwrap();
        }
        Some((name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()))
    };
    let mut seeds = Vec::new();
    for fixture in TAKEN {
        seeds.extend(kept(format!("{fixture}.json"), &|| Some(folder(fixture))));
        seeds.extend(kept(format!("{fixture}-gguf.json"), &|| gguf(&folder(fixture))));
    }
    seeds
}

/// Describes, builds and binds; says which family it is.
fn read(checkpoint: &Checkpoint) -> Result<String, ModelError> {
    let spec = describe(checkpoint)?;
    let _ = (spec.to_string(), spec.gguf_metadata(), spec.hf_config(), spec.parameters());
    spec.trunk_graph(BuildOptions { hidden: true }).expect("what was described can be built");
    let table = bind(checkpoint, &spec)?;
    let _ = (table.stored_bytes(), table.notes());
    Ok(spec.architecture)
}

#[test]
fn seeds_are_models_of_every_family() {
    let families = SEEDS.iter().map(|(name, document)| {
        let checkpoint = stored_model::open(document).unwrap_or_else(|| panic!("{name} cannot be opened"));
        read(&checkpoint).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    let found: Vec<String> = families.collect();
    // Nemotron-H has seeds of its own, in every quantised form.
    let others = FAMILIES.iter().map(|family| family.name).filter(|name| *name != "nemotron_h");
    others.for_each(|name| assert!(found.iter().any(|found| found == name), "{name} has no seed"));
}

#[test]
fn changed_models_get_a_sentence() {
    for (name, good) in SEEDS.iter() {
        let mut refused = 0;
        for round in 0..ROUNDS {
            let mut document = good.clone();
            json_changes::change(&mut document, round);
            let Some(checkpoint) = stored_model::open(&document) else { continue };
            let Err(error) = read(&checkpoint) else { continue };
            refused += 1;
            let sentence = error.to_string();
            assert!(!sentence.contains('\n') && sentence.contains("; "), "{name}: {sentence}");
            assert!(sentence.starts_with("fuzz"), "{name}: {sentence}");
        }
        assert!(refused > ROUNDS / 5, "{name}: {refused} refused");
    }
}
