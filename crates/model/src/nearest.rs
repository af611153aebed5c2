//! What an unknown model lacks to be one of a family that is known: the family whose names most of its tensors have, the
//! tensors it would not read, and what stands in the way of reading the others.
//!
//! Must not know families: it asks all of them.

use std::collections::HashSet;

use mambo_checkpoint::{Checkpoint, Format, Metadata};

use crate::bind;
use crate::error::ModelError;
use crate::families::{FAMILIES, Family};
use crate::names::{Part, Place};
use crate::spec::ModelSpec;
use crate::unread;

/// Fewer tensors under known names are no likeness: everybody has a norm and an embedding.
const LEAST_ALIKE: usize = 4;

/// The family that a model is most like.
#[derive(Clone, Debug)]
pub struct Nearest {
    /// The family's name.
    pub family: &'static str,
    /// Tensors whose names it knows.
    pub known: usize,
    /// All tensors.
    pub tensors: usize,
    /// Names it does not know, if there are any, as a list in words.
    pub unknown: Option<String>,
    /// Why it could not read the others; empty if it could.
    pub problems: Vec<String>,
}

/// The known family that a model of an unknown architecture is most like, if its tensors are like any.
pub fn nearest(checkpoint: &Checkpoint) -> Option<Nearest> {
    let names: Vec<&str> = checkpoint.tensors().map(|tensor| tensor.name.as_str()).collect();
    let is_gguf = checkpoint.format() == Format::Gguf;
    let unknown_to = |family: &Family| -> Vec<&str> {
        let known = if is_gguf { gguf_patterns(family) } else { patterns(family) };
        names.iter().copied().filter(|name| !known.contains(&unread::pattern(name))).collect()
    };
    let readers = FAMILIES.iter().filter(|family| !is_gguf || family.reads_gguf());
    let ranked: Vec<(&'static Family, Vec<&str>)> =
        readers.map(|family| (*family, unknown_to(family))).collect();
    let fewest = ranked.iter().map(|(_, unknown)| unknown.len()).min()?;
    let known = names.len() - fewest;
    if known < LEAST_ALIKE {
        return None;
    }
    // Several families may give tensors the same names.
    let alike = ranked.into_iter().filter(|(_, unknown)| unknown.len() == fewest);
    let with_problems = alike.map(|(family, unknown)| (family, unknown, problems(checkpoint, family)));
    // One that leaves out a tensor it could name is not the one.
    let leaves_out = |family| {
        let spec = ModelSpec::as_family(checkpoint, family).ok();
        spec.is_some_and(|spec| bind::bind(checkpoint, &spec).is_ok_and(|table| !table.notes().is_empty()))
    };
    let (family, unknown, problems) =
        with_problems.min_by_key(|(family, _, problems)| (problems.len(), leaves_out(family)))?;
    Some(Nearest {
        family: family.name,
        known,
        tensors: names.len(),
        unknown: (!unknown.is_empty()).then(|| unread::listed(&unknown)),
        problems: problems.iter().map(ModelError::to_string).collect(),
    })
}

/// What keeps a family from reading a checkpoint.
fn problems(checkpoint: &Checkpoint, family: &'static Family) -> Vec<ModelError> {
    match ModelSpec::as_family(checkpoint, family) {
        Ok(spec) => bind::problems(checkpoint, &spec),
        Err(error) => vec![error],
    }
}

const PLACES: [Place; 4] = [Place::Model, Place::Layer(0), Place::MtpAttention, Place::MtpMoe];

/// Every name that a family gives to a tensor of a safetensors release, with `N` for numbers.
fn patterns(family: &Family) -> HashSet<String> {
    let parts = family.tensors.iter().flat_map(|table| table.iter()).map(|(part, _)| *part);
    let names =
        parts.flat_map(|part| PLACES.into_iter().flat_map(move |place| family.tensor_names(place, part)));
    names.map(|(name, _)| unread::pattern(&name.replace("{e}", "0"))).collect()
}

/// The same of GGUF files.
fn gguf_patterns(family: &Family) -> HashSet<String> {
    let names = Part::all().flat_map(|part| PLACES.map(|place| family.gguf_name(place, part, 0)));
    names.map(|name| unread::pattern(&name)).collect()
}

impl ModelSpec {
    /// What the metadata of a checkpoint says to a family, whatever it calls itself.
    fn as_family(checkpoint: &Checkpoint, family: &'static Family) -> Result<ModelSpec, ModelError> {
        let source = checkpoint.source();
        match checkpoint.metadata() {
            Metadata::Config(files) => {
                ModelSpec::config_of(&format!("{source}/config.json"), &files.config, family)
            }
            Metadata::Gguf(metadata) => {
                let shape = |name: &str| checkpoint.tensor(name).map(|t| t.shape.dims().to_vec());
                ModelSpec::gguf_of(source, metadata, &shape, family)
            }
        }
    }
}
