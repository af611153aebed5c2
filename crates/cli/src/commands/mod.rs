//! One file per command.

pub mod logits;
pub mod run;
