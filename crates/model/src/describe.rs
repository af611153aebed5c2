//! From an open checkpoint to its specification, whatever the format.
//!
//! Must not know what the fields of either format mean.

use mambo_checkpoint::{Checkpoint, Metadata};

use crate::error::ModelError;
use crate::kv_scale;
use crate::quantization;
use crate::spec::ModelSpec;

/// Describes the model in a checkpoint.
pub fn describe(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
    let source = checkpoint.source();
    match checkpoint.metadata() {
        Metadata::Gguf(metadata) => {
            let shape = |name: &str| checkpoint.tensor(name).map(|t| t.shape.dims().to_vec());
            ModelSpec::from_gguf(source, metadata, &shape)
        }
        Metadata::Config(files) => {
            let file =
                if source.ends_with(".json") { source.to_owned() } else { format!("{source}/config.json") };
            let mut spec = ModelSpec::from_config(&file, &files.config, files.generation_config.as_ref())?;
            quantization::check_sidecar(&file, files)?;
            if checkpoint.tensors().any(|t| kv_scale::is_name(&t.name)) {
                spec.notes.push(kv_scale::NOTE.to_owned());
            }
            // Converters drop the MTP head but leave the config as it was.
            let has_tensors = checkpoint.tensors().next().is_some();
            let is_mtp = |name: &str| name.split('.').any(|part| part == "mtp");
            if spec.mtp.is_some() && has_tensors && !checkpoint.tensors().any(|t| is_mtp(&t.name)) {
                spec.mtp = None;
                spec.notes.push("config.json describes an MTP head, but the weights hold none".to_owned());
            }
            Ok(spec)
        }
    }
}
