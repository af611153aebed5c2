//! Shared by the tests: configs and tensor listings of the golden models, and checkpoints made from listings.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod folded;
pub mod stored;
pub mod tiny;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mambo_checkpoint::{Checkpoint, GgufMetadata, GgufValue, Metadata, TensorInfo, parse_json};
use mambo_model::ModelSpec;
use serde_json::{Value, json};

pub const FIXTURES: [&str; 10] =
    ["dense", "latent", "long", "moe", "mtp", "new-style", "odd", "router-groups", "small-dt", "tiny-hybrid"];

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// The folder of a golden model.
fn fixture_folder(name: &str) -> PathBuf {
    let folder = if name == "tiny-hybrid" { "models" } else { "tests/fixtures/checkpoints" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join(name)
}

/// A text beside a golden model's weights.
pub fn fixture_file(name: &str, file: &str) -> String {
    let path = fixture_folder(name).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn fixture_config(name: &str) -> Value {
    parse_json(&fixture_file(name, "config.json")).unwrap()
}

pub fn fixture(name: &str) -> ModelSpec {
    ModelSpec::from_config("config.json", &fixture_config(name), None).unwrap()
}

/// A tensor as a file's header lists it: name, element type as safetensors spells it, shape.
pub type Listed = (String, String, Vec<usize>);

/// What the header of a golden model's weights lists.
pub fn listing(name: &str) -> Vec<Listed> {
    let path = fixture_folder(name).join("model.safetensors");
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.tensors().map(listed).collect()
}

fn listed(tensor: &TensorInfo) -> Listed {
    (tensor.name.clone(), tensor.dtype.name().to_uppercase(), tensor.shape.dims().to_vec())
}

/// A folder with these tensors (each value 0.5, or bytes of 0) and this config, in the build's own space.
pub fn folder(name: &str, config: &Value, tensors: &[Listed]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape) in tensors {
        let value: &[u8] = match dtype.as_str() {
            "F32" => &[0, 0, 0, 0x3f],
            "BF16" => &[0, 0x3f],
            "F16" | "I16" | "U16" => &[0, 0x38],
            "U32" => &[0; 4],
            _ => &[0],
        };
        let start = data.len();
        data.extend(value.repeat(shape.iter().product()));
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

/// What the header of a GGUF file says.
#[derive(Clone)]
pub struct GgufListing {
    pub keys: Vec<(String, GgufValue)>,
    pub tensors: Vec<Listed>,
}

impl GgufListing {
    /// A file of the trained tiny model that llama.cpp's own tools wrote.
    pub fn tiny_hybrid() -> GgufListing {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-hybrid-mtp-Q8_0.gguf");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("not GGUF") };
        // The vocabulary and the template say nothing about the model.
        let is_text = |key: &str| {
            matches!(key.strip_prefix("tokenizer.ggml."), Some("tokens" | "token_type" | "merges"))
                || key == "tokenizer.chat_template"
        };
        let keys = metadata.iter().filter(|(key, _)| !is_text(key));
        GgufListing {
            keys: keys.map(|(key, value)| (key.to_owned(), value.clone())).collect(),
            tensors: checkpoint.tensors().map(listed).collect(),
        }
    }

    pub fn metadata(&self) -> GgufMetadata {
        let mut metadata = GgufMetadata::new("m.gguf");
        for (key, value) in &self.keys {
            metadata.set(key.as_str(), value.clone());
        }
        metadata
    }

    pub fn spec(&self) -> Result<ModelSpec, mambo_model::ModelError> {
        let shapes: HashMap<_, _> = self.tensors.iter().map(|(n, _, s)| (n.as_str(), s)).collect();
        ModelSpec::from_gguf("m.gguf", &self.metadata(), &|name| shapes.get(name).map(|s| s.to_vec()))
    }
}
