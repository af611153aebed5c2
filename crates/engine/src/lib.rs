//! Tokens in, tokens out: sequences, scheduling, caches, sampling over any backend.
//!
//! Knows token ids and plans. It must not know strings, files, architectures or HTTP, and has no async.

mod batch;
pub mod cache;
mod draw;
mod engine;
mod error;
mod load;
mod memory;
mod sample;
mod scheduler;
mod score;
mod sequence;
mod snapshot;

pub use engine::{Engine, Event};
pub use error::EngineError;
pub use load::{EngineConfig, ModelGraphs, Progress, SCORE_TOKENS, SnapshotRoom, Weights, optimise, plan};
pub use memory::{MemoryNeed, cache_layout, human_bytes};
pub use sample::{Choice, History, Logprobs, Sampler, SamplingParams, argmax};
pub use score::{ReadOutput, ScoreOptions, ScoredRows};
pub use sequence::{FinishReason, Request, SequenceId};
pub use snapshot::Snapshot;
