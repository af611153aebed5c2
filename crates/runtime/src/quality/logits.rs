//! Whether logits are numbers at all. A mean over NaN looks like a result, and a largest value skips it.

use crate::{Model, RuntimeError};

/// Refuses rows of logits that are not all finite; `first` is the position of the first row.
pub fn check_logits(model: &Model, first: usize, rows: &[f32]) -> Result<(), RuntimeError> {
    match rows.iter().position(|logit| !logit.is_finite()) {
        None => Ok(()),
        Some(at) => Err(RuntimeError::BadLogits {
            model: model.name().to_owned(),
            position: first + at / model.spec.vocab,
            value: rows[at],
        }),
    }
}
