//! Open a model, load it, ask it, stream the answer: the library under every program.
//!
//! ```text
//! Model::open ──▶ Model ──load──▶ Engine ─────────┐
//!                   │                             ├─generate──▶ pieces of text, then a Reply
//!                   └───text──▶ ModelText ─chat─▶ Prompt
//! ```
//!
//! A program that asks one question at a time calls [`generate`] with a callback; one that serves many, or that
//! must not block, steps the engine itself and gives each sequence a [`ReplyStream`]. The backend is the
//! caller's choice, and so are folders, clocks and what becomes of notes: nothing here prints, reads flags or
//! asks the environment.

mod conversation;
mod described;
mod embedding;
mod error;
mod generate;
pub mod gguf_text;
mod load;
mod loading;
mod model;
mod pieces;
mod prompt;
pub mod quality;
mod reply;
mod snapshot_folder;
mod text;
mod view;

pub use conversation::Conversation;
pub use described::{Described, TypeTable};
pub use embedding::unit_vector;
pub use error::RuntimeError;
pub use generate::{GenerateEvent, GenerateOptions, generate};
pub use load::{DEFAULT_CONTEXT, DEFAULT_STEP_TOKENS, LoadEvent, LoadOptions};
pub use loading::Loading;
pub use model::{BoundWeights, Graphs, Model};
#[cfg(any(unix, windows))]
pub use model::{OpenOptions, open_checkpoint};
pub use pieces::TokenPieces;
pub use prompt::Prompt;
pub use reply::{Reply, ReplyStream};
pub use snapshot_folder::{SnapshotFile, SnapshotFolder, name_of, read_snapshot, write_snapshot};
pub use text::ModelText;
pub use view::{file_bytes, live_view, model_view, watch_engine};

pub use mambo_engine::{Choice, Engine, FinishReason, SamplingParams};
pub use mambo_text::{ChatRequest, Event as Piece};
