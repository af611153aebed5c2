//! What can go wrong between a model's files and its answers. Messages say what to do in words; which flag or
//! field does it is for the program to add.

use std::path::PathBuf;

use mambo_checkpoint::CheckpointError;
use mambo_engine::{EngineError, Failure};
use mambo_model::ModelError;
use mambo_text::TextError;

/// Why a model cannot be opened, loaded or asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A sequence ended because something went wrong with it.
    #[error("{model}: {why}")]
    Failed {
        /// The model that ran.
        model: String,
        /// What the engine says.
        why: Failure,
    },
    /// Logits that are not numbers: nothing measured with them means anything.
    #[error(
        "{model}: the logits of position {position} hold {value}: the file is damaged or its type does not suit \
         the model; download it again, or convert it again from the original release"
    )]
    BadLogits {
        /// The model that ran.
        model: String,
        /// Position of the token that ran, from 0.
        position: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A file or folder that cannot be read, made or removed.
    #[error("cannot use {path}: {source}; check that it is there and who may write to it", path = path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that is no snapshot, or a damaged one.
    #[error("{path}: {source}", path = path.display())]
    Snapshot {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: EngineError,
    },
    /// Neither a path nor a preset.
    #[error("there is no file, folder or preset `{name}`; the presets are {known}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// The presets there are.
        known: String,
    },
    /// A folder without a tokenizer.
    #[error("{model} has no tokenizer.json; put the model's tokenizer.json into the folder")]
    NoTokenizer {
        /// The model.
        model: String,
    },
    /// A context that holds nothing.
    #[error("the context length is 0; it must hold at least one token")]
    NoContext,
    /// A context beyond what positions count.
    #[error("a context of {tokens} tokens is more than the {most} this engine allows")]
    ContextTooLong {
        /// Tokens asked for.
        tokens: usize,
        /// The limit.
        most: usize,
    },
    /// Steps that hold nothing.
    #[error("a step of 0 tokens runs nothing; allow at least one")]
    NoStepTokens,
    /// More sequences than anybody can mean.
    #[error("{sequences} sequences at once are more than the {most} this engine allows")]
    TooManySequences {
        /// Sequences asked for.
        sequences: usize,
        /// The limit.
        most: usize,
    },
    /// Caches whose size would not fit a number.
    #[error(
        "the KV cache of {sequences} x {context} tokens takes more memory than any machine has; lower the context length"
    )]
    CacheTooLarge {
        /// Sequences at once.
        sequences: usize,
        /// Tokens of each.
        context: usize,
    },
    /// The engine refused the model.
    #[error("cannot load {model}")]
    Load {
        /// The model.
        model: String,
        /// Why.
        source: EngineError,
    },
    /// A window in which nothing can be predicted.
    #[error(
        "a window of {tokens} tokens is too short; it needs at least 2 tokens, one to read and one to predict"
    )]
    WindowTooShort {
        /// Tokens of the window.
        tokens: usize,
    },
    /// A text in which nothing can be predicted.
    #[error("the text has {tokens} tokens; at least 2 are needed, one to read and one to predict")]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
    },
    /// Nothing to score.
    #[error("the number of windows is 0; at least one window must be scored")]
    NoWindows,
    /// Distributions over different vocabularies.
    #[error(
        "{model} has {tokens} tokens and {base} has {base_tokens}; compare models with one tokenizer",
        model = models[0], base = models[1]
    )]
    VocabularySizes {
        /// The model and its base.
        models: [String; 2],
        /// Tokens of the model.
        tokens: usize,
        /// Tokens of the base.
        base_tokens: usize,
    },
    /// The same text is different tokens to each.
    #[error(
        "{model} and {base} cut the text into different tokens; compare models with one tokenizer",
        model = models[0], base = models[1]
    )]
    DifferentTokens {
        /// The model and its base.
        models: [String; 2],
    },
    /// The caller's callback ended the work.
    #[error("stopped before the end")]
    Stopped,
    /// The files cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The files do not describe a model this engine runs.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer, the chat template or a request to it.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The engine refused a request or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
