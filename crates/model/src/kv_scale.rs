//! The scales that a checkpoint gives for a KV cache of 8-bit floats: `stored = value / scale`.
//!
//! Must not know caches: those of other types hold the values themselves, or their own scales.

use mambo_kernel::KvScale;

use crate::error::ModelError;
use crate::families::Family;
use crate::names::{Part, Place};
use crate::spec::{Mixer, ModelSpec};
use crate::storage::Files;

/// What a person is told about them.
pub(crate) const NOTE: &str =
    "the weights hold scales for a KV cache of 8-bit floats (f8); caches of other types need none";

/// Whether a tensor of this name holds such a scale.
pub(crate) fn is_name(name: &str) -> bool {
    name.ends_with(".k_scale") || name.ends_with(".v_scale")
}

/// The scales of every attention layer, in layer order and the MTP head's last; 1 where none is stored.
pub(crate) fn read(files: &Files, spec: &ModelSpec) -> Result<Vec<KvScale>, ModelError> {
    let layers = spec.layers.iter().enumerate();
    let attention =
        layers.filter(|(_, layer)| layer.mixers().any(|mixer| matches!(mixer, Mixer::Attention(_))));
    let trunk = attention.map(|(index, _)| Place::Layer(index));
    let places = trunk.chain(spec.mtp.iter().map(|_| Place::MtpAttention));
    places
        .map(|place| {
            let one = |part| one(files, Family::of(spec), place, part);
            Ok(KvScale { k: one(Part::K)?, v: one(Part::V)? })
        })
        .collect()
}

fn one(files: &Files, family: &Family, place: Place, part: Part) -> Result<f32, ModelError> {
    let suffix = if part == Part::K { "k_scale" } else { "v_scale" };
    for (name, _) in family.tensor_names(place, part) {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        // Beside the projection, or beside the attention it belongs to.
        let outer = module.rsplit_once('.').map_or("", |(outer, _)| outer);
        let found = files.beside(module, suffix).or_else(|| files.beside(outer, suffix));
        if let Some(tensor) = found {
            let values = files.positive(tensor)?;
            return match values[..] {
                [scale] => Ok(scale),
                _ => {
                    Err(files
                        .unsupported(tensor, format!("holds {} scales, but one is expected", values.len())))
                }
            };
        }
    }
    Ok(1.0)
}
