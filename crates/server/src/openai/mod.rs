//! OpenAI's dialect.

mod chat;
mod completions;
mod embeddings;
mod responses;
mod types;

pub(crate) use chat::{chat_completions, finish_error};
pub(crate) use completions::completions;
pub(crate) use embeddings::embeddings;
pub(crate) use responses::{ResponseStore, responses};
pub(crate) use types::{OneOrMany, error_body, models};
