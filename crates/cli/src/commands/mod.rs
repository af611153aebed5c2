//! One file per command.

pub mod bench;
pub mod chat;
pub mod doctor;
pub mod eval;
pub mod explain;
pub mod fit;
pub mod inspect;
pub mod list;
pub mod logits;
pub mod pull;
pub mod quantize;
pub mod rm;
pub mod run;
pub mod serve;
pub mod synth;
