//! Tokens in, tokens out: sequences, scheduling, caches, sampling over any backend.
//!
//! Knows token ids and plans. It must not know strings, files, architectures or HTTP, and has no async.

mod admission;
mod adopt;
mod batch;
pub mod cache;
mod checksum;
mod engine;
mod error;
mod experts;
mod export;
mod fingerprint;
mod history;
mod in_flight;
mod load;
mod loading;
mod loss;
mod memory;
mod prefix;
mod resume;
mod sample;
mod scheduler;
mod score;
mod sequence;
mod snapshot;

pub use adopt::SpilledPrefix;
pub use engine::{Engine, Event};
pub use error::{EngineError, Failure};
pub use experts::ExpertCounts;
pub use export::Export;
pub use fingerprint::Fingerprint;
pub use load::{
    EngineConfig, ModelGraphs, PlanOptions, Progress, SCORE_TOKENS, SnapshotRoom, TOKEN, Weights, optimise,
    plan,
};
pub use loading::Loading;
pub use memory::{MemoryNeed, cache_layout, human_bytes, source_bytes};
pub use prefix::{MatchEnd, PrefixCacheConfig, PrefixCacheStats, Reuse, common_prefix};
pub use sample::{Choice, Logprobs, SamplingParams, argmax};
pub use scheduler::StepLoad;
pub use score::{ScoreOptions, ScoredRows};
pub use sequence::{FinishReason, Request, SequenceId, TokenMask};
pub use snapshot::{Snapshot, SnapshotHeader};
