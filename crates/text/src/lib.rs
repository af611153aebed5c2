//! Strings on both sides of the model: a conversation becomes token ids, token ids become reasoning,
//! content and tool calls.
//!
//! ```text
//! messages ──ChatTemplate──▶ prompt ──Tokenizer──▶ ids ──▶ (engine)
//! events ◀──OutputParser── text ◀──Detokenizer── ids ◀──── (engine)
//! ```
//!
//! The crate knows no tensors, no sequences and no files: callers hand in the text of `tokenizer.json`, of
//! the chat template, or the vocabulary they read from a GGUF file. Nothing here is global, and nothing a
//! user or a model writes may fail or panic: only a broken model file or a request that cannot be rendered
//! is an error.

pub mod detokenizer;
mod error;
pub mod parse;
mod stop;
pub mod template;
pub mod tokenizer;

pub use detokenizer::{Detokenizer, Specials};
pub use error::{Result, TextError};
pub use parse::{
    Answer, Arguments, CallDialect, Calls, Event, OutputParser, OutputStyle, ParseOptions, ReasoningStart,
    ThinkTags,
};
pub use stop::{Passed, StopStrings};
pub use template::{ChatRequest, ChatTemplate, clock};
pub use tokenizer::{GgufVocabulary, Tokenizer};
