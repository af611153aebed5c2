//! The table of architectures: one row says how a family is named and what its files call things.
//!
//! This is the only place that knows architecture names. It must not know sizes.

use crate::error::ModelError;
use crate::spec::ModelSpec;

/// One family of models.
#[derive(Debug)]
pub struct Architecture {
    /// The family's name in specifications and messages.
    pub name: &'static str,
    /// `model_type` values of its config files.
    pub model_types: &'static [&'static str],
    /// `architectures` values of its config files.
    pub classes: &'static [&'static str],
    /// `model_type` values and classes of wrappers whose text model is of this family.
    pub wrappers: &'static [&'static str],
    /// `general.architecture` values of its GGUF files.
    pub gguf: &'static [&'static str],
    /// Name to write into a GGUF file of a dense model and of one with experts.
    pub gguf_export: [&'static str; 2],
    /// Tokens that end an answer in every member, whatever a file says.
    pub stop_tokens: &'static [u32],
    /// Texts of tokens that end an answer where the vocabulary has them, whatever their ids.
    pub stop_names: &'static [&'static str],
}

/// Every family there is.
pub static ARCHITECTURES: &[Architecture] = &[Architecture {
    name: "nemotron_h",
    model_types: &["nemotron_h", "nemotron_h_puzzle"],
    classes: &["NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"],
    wrappers: &[
        "nemotron_h_omni",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Omni_Reasoning_V3",
    ],
    gguf: &["nemotron_h", "nemotron_h_moe"],
    gguf_export: ["nemotron_h", "nemotron_h_moe"],
    stop_tokens: &[2],
    stop_names: &["<|im_end|>", "<SPECIAL_12>", "</s>"],
}];

impl Architecture {
    /// The row whose config files carry any of these names.
    pub fn of_config(file: &str, names: &[String]) -> Result<&'static Architecture, ModelError> {
        find(file, names, |row, name| {
            row.model_types.contains(&name) || row.classes.contains(&name) || row.wrappers.contains(&name)
        })
    }

    /// The row whose GGUF files carry this name.
    pub fn of_gguf(file: &str, name: &str) -> Result<&'static Architecture, ModelError> {
        find(file, &[name.to_owned()], |row, name| row.gguf.contains(&name))
    }

    /// The row with this family name.
    pub fn named(name: &str) -> Option<&'static Architecture> {
        ARCHITECTURES.iter().find(|row| row.name == name)
    }
}

impl ModelSpec {
    /// Texts of tokens that end an answer in this family.
    pub fn stop_names(&self) -> &'static [&'static str] {
        Architecture::named(&self.architecture).map_or(&[], |row| row.stop_names)
    }
}

fn find(
    file: &str,
    names: &[String],
    matches: impl Fn(&Architecture, &str) -> bool,
) -> Result<&'static Architecture, ModelError> {
    let row = ARCHITECTURES.iter().find(|row| names.iter().any(|name| matches(row, name)));
    row.ok_or_else(|| {
        let mut supported: Vec<&str> = Vec::new();
        for name in ARCHITECTURES.iter().flat_map(|row| row.model_types.iter().chain(row.gguf)) {
            if !supported.contains(name) {
                supported.push(name);
            }
        }
        ModelError::UnknownArchitecture {
            file: file.to_owned(),
            architecture: names.first().map_or("(none given)", String::as_str).to_owned(),
            supported: supported.join(", "),
        }
    })
}
