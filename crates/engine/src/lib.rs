//! Tokens in, tokens out: sequences, scheduling, caches, sampling over any backend.
//!
//! Knows token ids and plans. It must not know strings, files, architectures or HTTP, and has no async.

mod batch;
pub mod cache;
mod engine;
mod error;
mod fingerprint;
mod in_flight;
mod load;
mod memory;
mod resume;
mod sample;
mod scheduler;
mod score;
mod sequence;
mod snapshot;

pub use engine::{Engine, Event};
pub use error::EngineError;
pub use fingerprint::Fingerprint;
pub use load::{
    EngineConfig, ModelGraphs, PlanOptions, Progress, SCORE_TOKENS, SnapshotRoom, TOKEN, Weights, optimise,
    plan,
};
pub use memory::{MemoryNeed, cache_layout, human_bytes};
pub use sample::{Choice, History, Logprobs, SamplingParams, argmax};
pub use score::{ScoreOptions, ScoredRows};
pub use sequence::{FinishReason, Request, SequenceId, TokenMask};
pub use snapshot::Snapshot;
