//! How good a model is, as numbers and a picture: likelihood of a text, distance from a base model.

mod compare;
mod curve;
mod divergence;
mod windows;

pub use compare::{Comparison, DEFAULT_WINDOW, TextCut, compare};
pub use curve::svg_curve;
pub use divergence::{Divergence, Likelihood, log_softmax};
pub use windows::{Windows, score_window};
