//! Safetensors files that a test reads, changes and writes again.

use std::path::{Path, PathBuf};

use mambo_checkpoint::{Checkpoint, parse_json};
use mambo_model::{ModelError, bind, describe};
use mambo_tensor::{DType, decode_row};
use serde_json::{Value, json};

/// One tensor with its bytes; the type is spelled as the file does.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A model folder in memory.
#[derive(Clone)]
pub struct Stored {
    pub config: Value,
    pub sidecar: Option<Value>,
    pub tensors: Vec<Tensor>,
}

impl Stored {
    /// A quantised checkpoint of the repository.
    pub fn fixture(name: &str) -> Stored {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quant").join(name);
        let json = |file: &str| {
            let text = std::fs::read_to_string(folder.join(file)).ok()?;
            Some(parse_json(&text).unwrap())
        };
        let file = std::fs::read(folder.join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let (header, data) = file[8..].split_at(header);
        let header: Value = serde_json::from_slice(header).unwrap();
        let tensor = |(name, entry): (&String, &Value)| {
            let range = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            Tensor {
                name: name.clone(),
                dtype: entry["dtype"].as_str().unwrap().to_owned(),
                shape: serde_json::from_value(entry["shape"].clone()).unwrap(),
                bytes: data[range(0)..range(1)].to_vec(),
            }
        };
        let entries = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let tensors = entries.map(tensor).collect();
        Stored { config: json("config.json").unwrap(), sidecar: json("hf_quant_config.json"), tensors }
    }

    pub fn get(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|t| t.name != name);
        assert_ne!(before, self.tensors.len(), "no tensor {name}");
    }

    pub fn add(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>) {
        let (name, dtype, shape) = (name.to_owned(), dtype.to_owned(), shape.to_vec());
        self.tensors.push(Tensor { name, dtype, shape, bytes });
    }

    /// Writes the folder into the build's own space.
    pub fn write(&self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quantized").join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        if let Some(sidecar) = &self.sidecar {
            std::fs::write(folder.join("hf_quant_config.json"), sidecar.to_string()).unwrap();
        }
        std::fs::write(folder.join("model.safetensors"), self.safetensors()).unwrap();
        folder
    }

    /// The weights' file.
    pub fn safetensors(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::<u8>::new());
        for t in &self.tensors {
            let start = data.len();
            data.extend(&t.bytes);
            let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]});
            header.insert(t.name.clone(), entry);
        }
        let header = Value::from(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        file
    }

    pub fn open(&self, name: &str) -> Checkpoint {
        Checkpoint::open(&self.write(name)).unwrap()
    }

    /// Every weight's values by canonical name.
    pub fn values(&self, name: &str) -> Vec<(String, Vec<f32>)> {
        let checkpoint = self.open(name);
        let table = bind(&checkpoint, &describe(&checkpoint).unwrap()).unwrap();
        table.iter().map(|w| (w.name().to_owned(), w.to_f32().unwrap())).collect()
    }

    /// Why the model is not read, without the folder's path; reads every weight.
    pub fn refused(&self, name: &str) -> String {
        let checkpoint = self.open(name);
        let read = || -> Result<(), ModelError> {
            let table = bind(&checkpoint, &describe(&checkpoint)?)?;
            table.iter().try_for_each(|w| w.to_f32().map(|_| ()))
        };
        let error = read().expect_err(name).to_string();
        error.replace(checkpoint.source(), "FOLDER")
    }
}

impl Tensor {
    /// The single f32 it holds.
    pub fn scalar(&self) -> f32 {
        f32::from_le_bytes(self.bytes[..].try_into().unwrap())
    }

    /// Its values, of a plain type.
    pub fn floats(&self, dtype: DType) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        decode_row(dtype, &self.bytes, &mut values).unwrap();
        values
    }

    /// Keeps the bytes of so many columns of each row.
    pub fn cut_columns(&mut self, cols: usize) {
        let old = *self.shape.last().unwrap();
        let rows: usize = self.shape.iter().product::<usize>() / old;
        let elem = self.bytes.len() / rows / old;
        self.bytes =
            self.bytes.chunks_exact(old * elem).flat_map(|row| row[..cols * elem].to_vec()).collect();
        *self.shape.last_mut().unwrap() = cols;
    }
}
