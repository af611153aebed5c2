//! The families of models, one folder each: how their files spell things. Nothing outside this folder knows the name
//! of a family, of a config key or of a tensor in a safetensors release.
//!
//! A family enters by its folder and one line in [`FAMILIES`]. Its mathematics is in the blocks and ops; a folder says
//! which of them a config or a GGUF file asks for.

mod bamba;
mod falcon_h1;
mod gemma3;
pub(crate) mod gguf;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mamba2;
mod nemotron_h;
mod qwen2;
mod qwen3;
mod qwen3_next;
pub(crate) mod reading;
mod smollm3;
pub(crate) mod spelling;

use serde_json::Value;

use crate::error::ModelError;
use crate::fields::Fields;
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::ModelSpec;
use crate::weights::Weight;
use gguf::{Arrangement, Dialect, Keys};
use spelling::{Spelling, StoredRows, Table};

/// One family of models.
pub struct Family {
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
    /// Tokens that end an answer in every member, whatever a file says.
    pub stop_tokens: &'static [u32],
    /// Texts of tokens that end an answer where the vocabulary has them, whatever their ids.
    pub stop_names: &'static [&'static str],
    /// Names of tensors in safetensors releases; the first table that knows a part counts.
    pub(crate) tensors: &'static [Table],
    /// Names of tensors in GGUF files where they are not the usual ones.
    pub(crate) gguf_tensors: Table,
    /// Norms that safetensors releases store as their distance from one.
    pub(crate) plus_one: &'static [Part],
    /// Whether a config without any name of a family is this one's.
    pub(crate) recognises: fn(&Fields) -> bool,
    /// Reads the fields of a config: sizes, layers and factors.
    pub(crate) config: fn(&Fields) -> Result<ModelSpec, ModelError>,
    /// What GGUF files of the family do not say.
    pub(crate) dialect: Dialect,
    /// How a weight lies in a GGUF file that is written; none where another tensor holds it.
    pub(crate) arrange: fn(&ModelSpec, &Weight) -> Option<Arrangement>,
    /// Reads the metadata of a GGUF file.
    pub(crate) read_gguf: Option<ReadGguf>,
    /// The architecture's name and keys of a GGUF file that is written, where the family can be.
    pub(crate) write_gguf: Option<WriteGguf>,
    /// The config of a safetensors folder that is written, where the family can be.
    pub(crate) write_config: Option<fn(&ModelSpec) -> Value>,
}

/// Describes the model of a GGUF file.
pub(crate) type ReadGguf = fn(&GgufReader) -> Result<ModelSpec, ModelError>;

/// Names the architecture and gives its keys without their prefix.
pub(crate) type WriteGguf = fn(&ModelSpec) -> (&'static str, Keys);

/// Every family there is.
pub static FAMILIES: &[&Family] = &[
    &nemotron_h::FAMILY,
    &llama::FAMILY,
    &smollm3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma3::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &falcon_h1::FAMILY,
    &bamba::FAMILY,
    &mamba2::FAMILY,
    &lfm2::FAMILY,
    &qwen3_next::FAMILY,
];

/// Prefixes that releases put before the trunk's names.
const TRUNK_PREFIXES: [&str; 6] =
    ["backbone.", "model.", "language_model.backbone.", "language_model.model.", "model.language_model.", ""];
/// Prefixes before the names beside the trunk: head and MTP.
const OUTER_PREFIXES: [&str; 6] =
    ["", "language_model.", "model.language_model.", "backbone.", "model.", "language_model.model."];

impl Family {
    /// A family whose members have neither wrappers nor tokens of their own; a row says the rest.
    pub(crate) const fn named(name: &'static str) -> Family {
        Family {
            name,
            model_types: &[],
            classes: &[],
            wrappers: &[],
            gguf: &[],
            stop_tokens: &[],
            stop_names: &[],
            tensors: &[],
            gguf_tensors: &[],
            plus_one: &[],
            recognises: |_| false,
            config: |fields| Err(fields.missing(&["model_type"])),
            dialect: gguf::PLAIN,
            arrange: |spec, weight| gguf::arrange(spec, weight, &Family::of(spec).dialect),
            read_gguf: None,
            write_gguf: None,
            write_config: None,
        }
    }

    /// The family whose config files carry any of these names, most telling name first.
    pub(crate) fn of_config(fields: &Fields, names: &[String]) -> Result<&'static Family, ModelError> {
        let by_name = |name: &String| {
            let name = name.as_str();
            FAMILIES.iter().find(|family| {
                [family.model_types, family.classes, family.wrappers].iter().any(|list| list.contains(&name))
            })
        };
        let found = names.iter().find_map(by_name);
        let found = found.or_else(|| FAMILIES.iter().find(|family| (family.recognises)(fields)));
        found.copied().ok_or_else(|| unknown(fields.file(), names.first().map(String::as_str)))
    }

    /// The family whose GGUF files carry this name, and how they are read.
    pub(crate) fn of_gguf(file: &str, name: &str) -> Result<(&'static Family, ReadGguf), ModelError> {
        let found = FAMILIES.iter().find(|family| family.gguf.contains(&name));
        let read = found.and_then(|family| Some((*family, family.read_gguf?)));
        read.ok_or_else(|| unknown(file, Some(name)))
    }

    /// The family that a specification was made by.
    pub fn of(spec: &ModelSpec) -> &'static Family {
        let found = FAMILIES.iter().find(|family| family.name == spec.architecture);
        found.expect("specifications are made by families")
    }

    /// Whether its GGUF files are read.
    pub fn reads_gguf(&self) -> bool {
        self.read_gguf.is_some()
    }

    /// Whether GGUF files of it can be written.
    pub fn writes_gguf(&self) -> bool {
        self.write_gguf.is_some()
    }

    /// What a part may be called inside a layer of a safetensors release, most usual name first.
    fn spellings(&self, part: Part) -> &'static [Spelling] {
        let part = if part == Part::TiedHead { Part::Embed } else { part };
        let find = |table: &Table| table.iter().find(|(own, _)| *own == part).map(|(_, names)| *names);
        self.tensors.iter().find_map(find).unwrap_or(&[])
    }

    /// Every safetensors name a part may have, most usual first; `{e}` stands for the number of an expert.
    pub(crate) fn tensor_names(
        &self,
        place: Place,
        part: Part,
    ) -> impl Iterator<Item = (String, &'static Spelling)> {
        let prefixes: &[&str] = match (place, part) {
            (Place::Model, Part::Head) | (Place::MtpAttention | Place::MtpMoe, _) => &OUTER_PREFIXES,
            _ => &TRUNK_PREFIXES,
        };
        let layer = match place {
            Place::Model => String::new(),
            Place::Layer(index) => format!("layers.{index}."),
            Place::MtpAttention => "mtp.layers.0.".to_owned(),
            Place::MtpMoe => "mtp.layers.1.".to_owned(),
        };
        let spellings = self.spellings(part);
        prefixes.iter().flat_map(move |prefix| {
            let layer = layer.clone();
            spellings.iter().map(move |spelling| (format!("{prefix}{layer}{}", spelling.name), spelling))
        })
    }

    /// The usual safetensors name of a part; `{e}` stands for the number of an expert.
    pub fn tensor_name(&self, place: Place, part: Part) -> String {
        self.tensor_names(place, part).next().map_or_else(|| place.canonical(part), |(name, _)| name)
    }

    /// Every GGUF name a part may have, most usual first, and which rows of the tensor are its own; the trunk of the
    /// model has `depth` layers.
    pub(crate) fn gguf_names(
        &self,
        place: Place,
        part: Part,
        depth: usize,
    ) -> impl Iterator<Item = (String, StoredRows)> {
        let block = match place {
            Place::Model => String::new(),
            Place::Layer(index) => format!("blk.{index}."),
            Place::MtpAttention | Place::MtpMoe => format!("blk.{depth}."),
        };
        let own = self.gguf_tensors.iter().find(|(own, _)| *own == part).map(|(_, names)| *names);
        let usual = own.is_none().then_some((part.names().gguf, StoredRows::All));
        let own = own.unwrap_or(&[]).iter().map(|spelling| (spelling.name, spelling.rows));
        own.chain(usual).map(move |(name, rows)| (format!("{block}{name}"), rows))
    }

    /// The usual GGUF name of a part.
    pub(crate) fn gguf_name(&self, place: Place, part: Part, depth: usize) -> String {
        self.gguf_names(place, part, depth).next().expect("every part has a name").0
    }
}

impl ModelSpec {
    /// Texts of tokens that end an answer in this family.
    pub fn stop_names(&self) -> &'static [&'static str] {
        Family::of(self).stop_names
    }
}

fn unknown(file: &str, name: Option<&str>) -> ModelError {
    let mut supported: Vec<&str> = Vec::new();
    let gguf = |family: &&&Family| if family.reads_gguf() { family.gguf } else { &[] };
    for name in FAMILIES.iter().flat_map(|family| family.model_types.iter().chain(gguf(&family))) {
        if !supported.contains(name) {
            supported.push(name);
        }
    }
    ModelError::UnknownArchitecture {
        file: file.to_owned(),
        architecture: name.unwrap_or("(none given)").to_owned(),
        supported: supported.join(", "),
    }
}
