//! How much each input of a weight matters: the mean square of what a text makes the model feed it.

use std::collections::HashMap;

/// Numbers per weight, by canonical name: one for each column, or for each column of each expert.
#[derive(Clone, Debug, Default)]
pub struct Importance(HashMap<String, Vec<f32>>);

impl Importance {
    /// What was measured.
    pub fn new(means: HashMap<String, Vec<f32>>) -> Importance {
        Importance(means)
    }

    /// The numbers of a weight, if any were measured.
    pub fn of(&self, weight: &str) -> Option<&[f32]> {
        self.0.get(weight).map(Vec::as_slice)
    }
}
