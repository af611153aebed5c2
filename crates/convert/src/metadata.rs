//! What an exported file says about itself: model, tokenizer, chat template, sampling. Must not know tensors.

use mambo_checkpoint::{GgufMetadata, GgufValue, Metadata};
use mambo_model::ModelSpec;
use mambo_runtime::{Model, gguf_text};

use crate::{ConvertError, Recipe, vocabulary};

/// Version of the block formats.
const QUANTIZATION_VERSION: u32 = 2;

/// The keys of a model that was not read from a file: no tokenizer yet.
pub fn of_spec(spec: &ModelSpec, name: &str, recipe: &Recipe) -> Result<GgufMetadata, ConvertError> {
    let mut metadata = GgufMetadata::new(name);
    for (key, value) in spec.gguf_metadata()? {
        metadata.set(key, value);
    }
    metadata.set("general.type", "model");
    metadata.set("general.name", name);
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    metadata.set("general.file_type", recipe.file_type());
    Ok(metadata)
}

/// The keys of an open model: sizes from its description, the rest from its own files.
pub fn of_model(model: &Model, recipe: &Recipe) -> Result<GgufMetadata, ConvertError> {
    let mut metadata = of_spec(&model.spec, &display_name(model), recipe)?;
    match model.checkpoint.metadata() {
        Metadata::Gguf(own) => gguf_text::copy_text(&mut metadata, own),
        Metadata::Config(files) => {
            match files.tokenizer_json {
                Some(_) => vocabulary::add(model, files, &mut metadata)?,
                None => gguf_text::set_no_vocabulary(&mut metadata),
            }
            if let Some(template) = &files.chat_template {
                gguf_text::set_chat_template(&mut metadata, template);
            }
            gguf_text::set_sampling(&mut metadata, &model.sampling());
        }
    }
    Ok(metadata)
}

/// The name the file has for itself, else that of the folder or file.
fn display_name(model: &Model) -> String {
    if let Metadata::Gguf(own) = model.checkpoint.metadata()
        && let Some(GgufValue::String(name)) = own.get("general.name")
    {
        return name.clone();
    }
    let path = std::path::Path::new(model.name());
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| model.name().to_owned(), |stem| stem.to_string_lossy().into_owned())
}
