//! What can go wrong between a request and its tokens.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use mambo_graph::GraphError;
use mambo_kernel::BackendError;
use mambo_plan::PlanError;

use crate::fingerprint::Fingerprint;

/// An engine error; each names what does not fit and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The prompt has no tokens.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt has {tokens} tokens but the context holds {context}; shorten it or raise the context length (this model was trained on {trained})"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// Positions available.
        context: usize,
        /// The model's own length.
        trained: usize,
    },
    /// The prompt fills the context to the last position.
    #[error(
        "the prompt fills the context of {context} tokens and leaves no room for an answer; shorten it or raise the context length"
    )]
    NoRoom {
        /// Positions available.
        context: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A request makes no sense.
    #[error("{0}")]
    Request(String),
    /// No token can be chosen.
    #[error(
        "no token can follow position {position}: its logits are not numbers, because the checkpoint is damaged or its type does not suit the model, or none is allowed by the request"
    )]
    NoToken {
        /// Position of the token that ran.
        position: usize,
    },
    /// An embedding is not numbers.
    #[error(
        "the embedding is not numbers, because the checkpoint is damaged or its type does not suit the model; try another file of it"
    )]
    NoEmbedding,
    /// A step failed in the backend.
    #[error("the step failed and what the sequence had computed is lost; submit it again ({0})")]
    Step(Arc<BackendError>),
    /// The device is gone with everything it held.
    #[error("{0}")]
    Lost(Arc<BackendError>),
    /// Something would wait where nothing may.
    #[error(
        "{what} waits for the device, which nothing may in a browser; load the model on the processor for it"
    )]
    CannotWait {
        /// What it is.
        what: &'static str,
    },
    /// Memory that a step in flight uses.
    #[error("a step is in flight; end it first")]
    InFlight,
    /// A scoring step has no room for the text.
    #[error("{companions} companions leave no room in a step of {room} tokens; use fewer")]
    TooManyCompanions {
        /// Companions asked for.
        companions: usize,
        /// Tokens of a step.
        room: usize,
    },
    /// What the model needs is more than there is.
    #[error(
        "the model needs {need} of memory ({parts}) but {available}; use a smaller quantisation, a shorter context or fewer sequences"
    )]
    DoesNotFit {
        /// Total.
        need: String,
        /// The parts of the total.
        parts: String,
        /// What the machine has.
        available: String,
    },
    /// More cache pages than can be numbered.
    #[error(
        "{sequences} sequences of {context} tokens take {pages} cache pages, which is more than can be numbered; use a shorter context or fewer sequences"
    )]
    TooManyPages {
        /// Sequences at once.
        sequences: usize,
        /// Positions of each.
        context: usize,
        /// Pages that they would take.
        pages: usize,
    },
    /// A graph names a weight the checkpoint does not bind.
    #[error("the model's graph needs weight `{0}`, which the checkpoint does not provide")]
    MissingWeight(String),
    /// A rollback that the slot cannot do.
    #[error("cannot roll back {tokens} tokens; restore a snapshot instead")]
    Rollback {
        /// Tokens to take back.
        tokens: usize,
    },
    /// A snapshot of an engine with other cache types.
    #[error("the snapshot holds {got}, but this engine caches {want}; load it with the snapshot's types")]
    SnapshotTypes {
        /// What the snapshot holds.
        got: String,
        /// What the engine needs.
        want: String,
    },
    /// A snapshot of another model.
    #[error(
        "the snapshot is of model {got}, this is model {want}; use it with the model that it was taken from"
    )]
    SnapshotModel {
        /// What the snapshot names.
        got: Fingerprint,
        /// What is loaded.
        want: Fingerprint,
    },
    /// A snapshot whose pages are in another engine's pool.
    #[error("the snapshot shares memory with another engine; export it there and read the bytes here")]
    ForeignSnapshot,
    /// A snapshot for a prefix cache that is not there.
    #[error("there is no prefix cache to put the snapshot into; load the engine with one")]
    NoPrefixCache,
    /// A snapshot that is larger than the prefix cache.
    #[error("the snapshot takes {need}, and the prefix cache holds {budget}; give it more memory")]
    PrefixCacheTooSmall {
        /// Bytes of the snapshot.
        need: String,
        /// Bytes of the cache.
        budget: String,
    },
    /// Bytes that are no snapshot.
    #[error("these bytes are not a snapshot: they {0}; export it again")]
    SnapshotBytes(String),
    /// Too few slots or pages are free.
    #[error(
        "only {free_slots} sequence slots and {free_pages} cache pages are free; drop snapshots, or load the engine with room for more"
    )]
    Busy {
        /// Free recurrent slots.
        free_slots: usize,
        /// Free KV pages.
        free_pages: usize,
    },
    /// An unknown sequence id.
    #[error("no running sequence has that id; it has finished or was never submitted")]
    UnknownSequence,
    /// A pass broke the graph.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The plan could not be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a sequence failed: an error that events can share.
#[derive(Clone, Debug)]
pub struct Failure(Arc<EngineError>);

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Failure(Arc::new(error))
    }
}

impl Deref for Failure {
    type Target = EngineError;

    fn deref(&self) -> &EngineError {
        &self.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}
