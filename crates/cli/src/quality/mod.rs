//! How good a model is, as numbers and a picture: likelihood of a text, distance from a base model.

mod curve;
mod divergence;
mod windows;

pub use curve::svg_curve;
pub use divergence::{Divergence, Likelihood, log_softmax};
pub use windows::{Windows, score_window};
