//! The config files of common members of every family, to describe a model without having its files.
//!
//! One row per member; the values stand in `presets/*.json`, written as that member's release writes them.

use mambo_checkpoint::parse_json;

use crate::error::ModelError;
use crate::spec::ModelSpec;

/// One known model.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// The model it has the shape of.
    pub about: &'static str,
    /// Its config.json.
    pub config: &'static str,
}

macro_rules! presets {
    ($($name:literal: $about:literal,)*) => {
        /// Every known model, those of one family together.
        pub static PRESETS: &[Preset] = &[$(Preset {
            name: $name,
            about: $about,
            config: include_str!(concat!("../presets/", $name, ".json")),
        },)*];
    };
}

presets! {
    "h-4b": "Nemotron-H 4B",
    "h-8b": "Nemotron-H 8B",
    "h-47b": "Nemotron-H 47B",
    "h-56b": "Nemotron-H 56B",
    "nano-9b-v2": "Nemotron Nano 9B v2",
    "nano-12b-v2": "Nemotron Nano 12B v2",
    "nano-4b": "Nemotron 3 Nano 4B",
    "nano-30b": "Nemotron 3 Nano 30B-A3B",
    "lightning": "Nemotron 3.5 Lightning 30B-A3B, with MTP head",
    "super": "Nemotron 3 Super 120B-A12B, latent experts, with MTP head",
    "ultra": "Nemotron 3 Ultra 550B-A55B, latent experts, with MTP head",
    "smollm2-135m": "SmolLM2 135M",
    "smollm2-1.7b": "SmolLM2 1.7B",
    "smollm3-3b": "SmolLM3 3B",
    "llama-3.2-1b": "Llama 3.2 1B",
    "llama-3.2-3b": "Llama 3.2 3B",
    "llama-3.1-8b": "Llama 3.1 8B",
    "mistral-7b": "Mistral 7B v0.3",
    "qwen2.5-7b": "Qwen 2.5 7B",
    "qwen3-0.6b": "Qwen 3 0.6B",
    "qwen3-8b": "Qwen 3 8B",
    "qwen3-30b-a3b": "Qwen 3 30B-A3B",
    "qwen3-next-80b": "Qwen3-Next 80B-A3B",
    "gemma-3-1b": "Gemma 3 1B",
    "gemma-3-4b": "Gemma 3 4B, its text model",
    "gpt-oss-20b": "gpt-oss 20B",
    "granite-4-h-tiny": "Granite 4.0 H Tiny 7B-A1B",
    "falcon-h1-0.5b": "Falcon-H1 0.5B",
    "bamba-9b": "Bamba 9B",
    "mamba2-2.7b": "Mamba-2 2.7B",
    "lfm2-1.2b": "LFM2 1.2B",
    "puzzle-75b": "an example in the manner of Nemotron-Labs 3 Puzzle 75B-A9B: the layers' widths are invented",
}

impl Preset {
    /// The preset of that name.
    pub fn named(name: &str) -> Result<&'static Preset, ModelError> {
        PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| ModelError::UnknownPreset {
            name: name.to_owned(),
            known: PRESETS.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Describes the model.
    pub fn spec(&self) -> Result<ModelSpec, ModelError> {
        let file = format!("preset {}", self.name);
        let config = parse_json(self.config).map_err(|problem| ModelError::BadField {
            file: file.clone(),
            field: "config.json".to_owned(),
            problem,
            remedy: "report this as a bug".to_owned(),
        })?;
        ModelSpec::from_config(&file, &config, None)
    }
}
