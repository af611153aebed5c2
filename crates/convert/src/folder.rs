//! A model folder: weights as safetensors, and the JSON files beside them as releases of the family have them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mambo_checkpoint::{Metadata, SafetensorsTensor, SafetensorsWriter, json_f32};
use mambo_runtime::{Model, gguf_text};
use mambo_tensor::blocks::Nvfp4;
use mambo_tensor::{DType, Shape};
use serde_json::{Value, json};

use crate::stream::{Sink, stream};
use crate::{Content, ConvertError, Layout, Output, Planned, Progress, Source};

/// Keys of a config.json that say how its weights are stored, which the new ones are not.
const STORAGE_KEYS: [&str; 3] = ["quantization_config", "quantization", "compression_config"];
/// Keys of a config.json around a text model.
const WRAPPERS: [&str; 2] = ["llm_config", "text_config"];

/// Refuses a folder that holds something, before any work is done.
pub(crate) fn check(path: &Path) -> Result<(), ConvertError> {
    let path = path.to_owned();
    if path.is_symlink() {
        return Err(ConvertError::IsLink { path });
    }
    match std::fs::read_dir(&path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(ConvertError::NotEmpty { path }),
        },
        Err(_) if path.is_file() => Err(ConvertError::IsFile { path }),
        Err(_) => Ok(()),
    }
}

/// Writes the folder, complete or not at all, and returns the bytes of its files.
pub fn write_folder(
    output: Output,
    model: &Model,
    layout: &Layout,
    source: &dyn Source,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<u64, ConvertError> {
    check(output.path)?;
    model.spec.check_hf_tensors()?;
    output.check_room(layout)?;
    let partial = PartialFolder::create(output.path)?;
    for (name, text) in texts(model, layout)? {
        let path = partial.path.join(name);
        std::fs::write(&path, text).map_err(ConvertError::write(&path))?;
    }
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    for planned in &layout.tensors {
        let (name, dtype) = (planned.name.clone(), planned.dtype);
        tensors.push(SafetensorsTensor { name, dtype, shape: Shape::new(&planned.shape)? });
    }
    let file = SafetensorsWriter::create(&partial.path.join("model.safetensors"), &tensors)?;
    let mut sink = InOrder { file, layout, current: 0 };
    stream(&mut sink, layout, source, output.threads, progress)?;
    sink.file.finish()?;
    partial.finish(output.path)
}

/// Fills the tensors of a file one after the other.
struct InOrder<'a> {
    file: SafetensorsWriter,
    layout: &'a Layout,
    current: usize,
}

impl Sink for InOrder<'_> {
    fn write(&mut self, tensor: &Planned, piece: &[u8]) -> Result<(), ConvertError> {
        while self.layout.tensors[self.current].name != tensor.name {
            self.current += 1;
        }
        Ok(self.file.add_bytes(self.current, piece)?)
    }
}

/// A folder under another name until everything is in it; dropping it earlier removes it.
struct PartialFolder {
    path: PathBuf,
}

impl PartialFolder {
    fn create(target: &Path) -> Result<PartialFolder, ConvertError> {
        // Without the slash that a completed name ends in.
        let bare = target.components().as_path().as_os_str();
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        // The first number that no other writer has taken: creating fails where there is a folder already.
        for n in 0..1000 {
            let mut name = bare.to_owned();
            name.push(format!(".{n}.partial"));
            let path = PathBuf::from(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(PartialFolder { path }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => last = error,
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        Err(ConvertError::write_hint(target, ": the folder around it must exist")(last))
    }

    /// Gives the folder its name; returns the bytes of its files.
    fn finish(self, target: &Path) -> Result<u64, ConvertError> {
        let bytes = folder_bytes(&self.path).map_err(ConvertError::write(target))?;
        // An empty folder of that name is in the way on some systems.
        let _ = std::fs::remove_dir(target);
        std::fs::rename(&self.path, target).map_err(ConvertError::write(target))?;
        Ok(bytes)
    }
}

fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After `finish` there is nothing of this name.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Every file but the weights, by name.
fn texts(model: &Model, layout: &Layout) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let mut config = config(model)?;
    let mut texts = Vec::new();
    if let Some(mut quantization) = quantization(layout) {
        if layout.tensors.iter().any(|tensor| matches!(tensor.content, Content::Constant(_))) {
            quantization["kv_cache_quant_algo"] = json!("FP8");
        }
        config["quantization_config"] = quantization.clone();
        config["quantization_config"]["quant_method"] = json!("modelopt");
        let producer = json!({"name": "mambo", "version": env!("CARGO_PKG_VERSION")});
        let sidecar = json!({"producer": producer, "quantization": quantization});
        texts.push(("hf_quant_config.json", pretty(&sidecar)));
    }
    texts.push(("config.json", pretty(&config)));
    match model.checkpoint.metadata() {
        Metadata::Config(files) => {
            texts.extend(files.tokenizer_json.clone().map(|text| ("tokenizer.json", text)));
            for (name, value) in [
                ("tokenizer_config.json", &files.tokenizer_config),
                ("generation_config.json", &files.generation_config),
            ] {
                if let Some(value) = value {
                    texts.push((name, pretty(value)));
                }
            }
            texts.extend(files.chat_template.clone().map(|text| ("chat_template.jinja", text)));
        }
        Metadata::Gguf(own) => {
            // A file may hold weights alone.
            if gguf_text::has_vocabulary(own) {
                texts.extend(tokenizer_texts(model)?);
            }
            let template = gguf_text::chat_template(own)?;
            texts.extend(template.map(|text| ("chat_template.jinja", text.to_owned())));
        }
    }
    Ok(texts)
}

/// What a GGUF file says about text, as the files of a folder.
fn tokenizer_texts(model: &Model) -> Result<Vec<(&'static str, String)>, ConvertError> {
    let text = model.text()?;
    let tokenizer = text.tokenizer();
    let token = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], false));
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token(tokenizer.bos()),
        "eos_token": token(tokenizer.eos()),
        "add_bos_token": tokenizer.adds_bos(),
    });
    let defaults = text.sampling();
    let mut generation = json!({"eos_token_id": text.stop_tokens()});
    if defaults.temperature > 0.0 {
        generation["do_sample"] = json!(true);
        generation["temperature"] = json_f32(defaults.temperature);
        generation["top_p"] = json_f32(defaults.top_p);
    }
    Ok(vec![
        ("tokenizer.json", tokenizer.to_json()?),
        ("tokenizer_config.json", pretty(&settings)),
        ("generation_config.json", pretty(&generation)),
    ])
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// The model's own config.json without what it says of storage, or one made of its sizes.
fn config(model: &Model) -> Result<Value, ConvertError> {
    let own = match model.checkpoint.metadata() {
        Metadata::Config(files) => files.config.as_object(),
        Metadata::Gguf(_) => None,
    };
    // A config around a text model describes vision or audio towers, whose weights are not written.
    let Some(own) = own.filter(|own| WRAPPERS.iter().all(|key| !own.contains_key(*key))) else {
        return Ok(model.spec.hf_config()?);
    };
    let kept = own.iter().filter(|(key, _)| !STORAGE_KEYS.contains(&key.as_str()));
    Ok(Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect()))
}

/// Which modules are quantised and how, in ModelOpt's words; nothing if none is.
fn quantization(layout: &Layout) -> Option<Value> {
    let algorithm = |dtype: DType| match dtype {
        DType::NVFP4 => Some(json!({"quant_algo": "W4A16_NVFP4", "group_size": Nvfp4::GROUP})),
        DType::F8E4M3 => Some(json!({"quant_algo": "FP8"})),
        _ => None,
    };
    let matrices = layout.tensors.iter().filter(|t| t.content.is_main() && t.shape.len() == 2);
    let modules: Vec<(&str, Option<Value>)> = matrices
        .map(|t| (t.name.strip_suffix(".weight").unwrap_or(&t.name), algorithm(t.encoding())))
        .collect();
    let mut kinds: Vec<&Value> = modules.iter().filter_map(|(_, algorithm)| algorithm.as_ref()).collect();
    kinds.sort_by_key(|kind| kind.to_string());
    kinds.dedup();
    match kinds[..] {
        [] => None,
        [kind] => {
            let left: Vec<&str> = modules.iter().filter(|(_, a)| a.is_none()).map(|(m, _)| *m).collect();
            let mut quantization = kind.clone();
            quantization["exclude_modules"] = json!(left);
            quantization["ignore"] = json!(left);
            Some(quantization)
        }
        _ => {
            let layers: serde_json::Map<String, Value> =
                modules.into_iter().filter_map(|(module, a)| Some((module.to_owned(), a?))).collect();
            Some(json!({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}))
        }
    }
}
