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
mod error;
mod generate;
pub mod gguf_text;
mod load;
mod model;
mod pieces;
mod prompt;
pub mod quality;
mod reply;
mod snapshot_folder;
mod text;

pub use conversation::Conversation;
pub use described::{Described, TypeTable};
pub use error::RuntimeError;
pub use generate::{GenerateEvent, GenerateOptions, generate};
pub use load::{DEFAULT_CONTEXT, DEFAULT_STEP_TOKENS, LoadEvent, LoadOptions};
pub use model::{BoundWeights, Graphs, Model, OpenOptions, open_checkpoint};
pub use pieces::TokenPieces;
pub use prompt::Prompt;
pub use reply::{Reply, ReplyStream};
pub use snapshot_folder::{SnapshotFile, SnapshotFolder, name_of, read_snapshot, write_snapshot};
pub use text::ModelText;

pub use mambo_engine::{Choice, Engine, FinishReason, SamplingParams};
pub use mambo_text::{ChatRequest, Event as Piece};
