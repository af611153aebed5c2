//! Shared by the tests: config files, tensor listings of real files, and checkpoints made from listings.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod stored;
pub mod tiny;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mambo_checkpoint::{GgufMetadata, GgufValue, parse_json};
use mambo_model::ModelSpec;
use serde_json::{Value, json};

pub const FIXTURES: [&str; 10] =
    ["dense", "latent", "long", "moe", "mtp", "new-style", "odd", "router-groups", "small-dt", "tiny-hybrid"];

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

pub fn read(path: &str) -> String {
    let path = models().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn fixture_config(name: &str) -> Value {
    parse_json(&read(&format!("fixtures/{name}.json"))).unwrap()
}

pub fn fixture(name: &str) -> ModelSpec {
    ModelSpec::from_config("config.json", &fixture_config(name), None).unwrap()
}

/// A tensor of a listing: name, element type as the file spells it, shape.
pub type Listed = (String, String, Vec<usize>);

/// `name type [shape]` lines.
pub fn listing(name: &str) -> Vec<Listed> {
    read(&format!("tensors/{name}.txt")).lines().map(listed).collect()
}

pub fn listed(line: &str) -> Listed {
    let (name, rest) = line.split_once(' ').unwrap();
    let (dtype, shape) = rest.split_once(' ').unwrap();
    (name.to_owned(), dtype.to_owned(), serde_json::from_str(shape).unwrap())
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
        let (mut keys, mut tensors) = (Vec::new(), Vec::new());
        for line in read("tensors/tiny-hybrid-mtp.gguf.txt").lines() {
            match line.split_once(' ').unwrap() {
                ("key", rest) => keys.push(key(rest)),
                (_, rest) => tensors.push(listed(rest)),
            }
        }
        GgufListing { keys, tensors }
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

fn key(line: &str) -> (String, GgufValue) {
    let mut words = line.splitn(3, ' ');
    let (name, kind, text) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let value = match kind {
        "u32" => GgufValue::U32(text.parse().unwrap()),
        "f32" => GgufValue::F32(text.parse().unwrap()),
        "bool" => GgufValue::Bool(text.parse().unwrap()),
        "string" => GgufValue::from(text),
        "array-i32" => serde_json::from_str::<Vec<i32>>(text).unwrap().into(),
        other => panic!("no kind {other}"),
    };
    (name.to_owned(), value)
}
