//! The config file of every member of the family, to describe a model without having its files.
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
        /// Every known model, oldest first.
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
