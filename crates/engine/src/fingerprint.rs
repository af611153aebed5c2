//! What tells two models apart: a hash over the names, types, shapes and some bytes of their weights.

use std::collections::BTreeMap;
use std::fmt;

use mambo_kernel::Digest;

use crate::load::Weights;

/// Tells models apart in practice: a hash of the names, types, shapes and scales of the weights that programs read, and
/// of a sample of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Fingerprint {
    /// The fingerprint of a model's weights, of which samples were digested as they were loaded.
    pub(crate) fn of(weights: &dyn Weights, samples: &BTreeMap<String, u64>) -> Fingerprint {
        let mut digest = Digest::default();
        for (name, sample) in samples {
            let Some(source) = weights.weight(name) else { continue };
            digest.write(name.as_bytes());
            digest.write(source.dtype().name().as_bytes());
            source.shape().iter().for_each(|size| digest.write(&(*size as u64).to_le_bytes()));
            digest.write(&sample.to_le_bytes());
        }
        for scale in weights.kv_scales() {
            digest.write(&scale.k.to_le_bytes());
            digest.write(&scale.v.to_le_bytes());
        }
        Fingerprint(digest.finish())
    }
}
