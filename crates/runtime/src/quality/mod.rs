//! How good a model is, in numbers: likelihood of a text, divergence from a base model.

mod compare;
mod divergence;
mod logits;
mod windows;

pub use compare::{Comparison, compare, perplexity};
pub use divergence::{Divergence, Likelihood, log_softmax, percentile};
pub use logits::check_logits;
pub use windows::{DEFAULT_WINDOW, Windows, score_window};
