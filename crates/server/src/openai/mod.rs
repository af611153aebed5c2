//! OpenAI's dialect.

mod answers;
mod chat;
mod chunk;
mod completions;
mod describe;
mod embeddings;
mod responses;
mod types;

pub(crate) use chat::{chat_completions, chat_of, finish_error, text_alone};
pub(crate) use completions::{completions, prompt_of};
pub(crate) use describe::{ChatMessage, ChatTool, operations, refusals};
pub(crate) use embeddings::{EmbeddingRequest, embeddings};
pub(crate) use responses::{ResponseStore, ResponsesRequest, responses};
pub(crate) use types::{ChatCompletionRequest, CompletionRequest, OneOrMany, error_body, models};
