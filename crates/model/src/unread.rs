//! Tensors of a checkpoint that no weight is made of. Most belong to other senses or to training and are only mentioned;
//! a bias beside a weight that is read, or a layer after the last one, says that the description is wrong: the model
//! would talk all the same, badly.
//!
//! Must not know what tensors hold.

use std::collections::{BTreeMap, HashSet};

use mambo_checkpoint::{Checkpoint, Format};

use crate::error::ModelError;
use crate::families::Family;
use crate::kv_scale;
use crate::names::{Part, Place};
use crate::spec::ModelSpec;

/// Names that are shown; the others are counted.
const MOST_SHOWN: usize = 4;
/// How names end that nobody misses: scales of activations, the plain order of groups, and what is computed anyway.
const EXPECTED: [&str; 6] =
    [".input_scale", ".input_global_scale", ".weight_shape", ".g_idx", ".inv_freq", "rope_freqs.weight"];

/// Refuses a checkpoint that holds more than its description says; else says what is not read, if anything is.
pub(crate) fn check(
    checkpoint: &Checkpoint,
    spec: &ModelSpec,
    read: &HashSet<&str>,
) -> Result<Option<String>, ModelError> {
    let contradiction = |tensor: &str, problem: String| ModelError::Contradiction {
        file: checkpoint.source().to_owned(),
        tensor: tensor.to_owned(),
        problem,
    };
    if let Some(name) = further_layer(checkpoint, spec) {
        let problem = format!("is in the files, but the metadata describes {} layers", spec.layers.len());
        return Err(contradiction(&name, problem));
    }
    let mut unread = Vec::new();
    for tensor in checkpoint.tensors().filter(|tensor| !read.contains(tensor.name.as_str())) {
        let name = tensor.name.as_str();
        if let Some(weight) = name.strip_suffix(".bias").map(|module| format!("{module}.weight"))
            && read.contains(weight.as_str())
        {
            return Err(contradiction(
                name,
                format!("is a bias on `{weight}` that the metadata does not describe"),
            ));
        }
        if !kv_scale::is_name(name) && !EXPECTED.iter().any(|end| name.ends_with(end)) {
            unread.push(name);
        }
    }
    Ok((!unread.is_empty()).then(|| format!("{} not read: {}", counted(unread.len()), listed(&unread))))
}

/// The norm of the layer after the last one. GGUF files are asked for theirs when they are described.
fn further_layer(checkpoint: &Checkpoint, spec: &ModelSpec) -> Option<String> {
    if checkpoint.format() == Format::Gguf {
        return None;
    }
    let family = Family::of(spec);
    let mut names = family.tensor_names(Place::Layer(spec.layers.len()), Part::Norm).map(|(name, _)| name);
    names.find(|name| checkpoint.tensor(name).is_some())
}

fn counted(tensors: usize) -> String {
    if tensors == 1 { "1 tensor is".to_owned() } else { format!("{tensors} tensors are") }
}

/// Names with `N` for every number, each once, with how many there are.
pub(crate) fn listed(names: &[&str]) -> String {
    let mut patterns: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *patterns.entry(pattern(name)).or_default() += 1;
    }
    let shown = patterns.iter().take(MOST_SHOWN).map(|(pattern, count)| match count {
        1 => format!("`{pattern}`"),
        _ => format!("`{pattern}` ({count})"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match patterns.len().saturating_sub(MOST_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more kinds"),
    }
}

/// A name with `N` for every part of it that is a number.
pub(crate) fn pattern(name: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    name.split('.').map(|part| if is_number(&part) { "N" } else { part }).collect::<Vec<_>>().join(".")
}
