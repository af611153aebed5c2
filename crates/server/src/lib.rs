//! The server: HTTP in the dialects of OpenAI, Anthropic and Ollama over one engine. Only this crate knows HTTP and dialects.
//!
//! ```text
//! HTTP ─▶ guard ─▶ dialect ─▶ Chat ─▶ Prepared (tokens, grammar) ─▶ Job ─▶ worker (engine thread)
//! HTTP ◀─ events ◀─ dialect ◀─ Delta ◀─ Generation (text, calls, stops) ◀─ Update ◀──┘
//! ```

mod anthropic;
mod asked;
mod background;
mod chat;
mod config;
mod disk;
mod embedding;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod generation;
mod grammar;
mod grammar_calls;
mod grammar_mask;
mod http;
mod info;
mod job;
mod live;
mod local_page;
mod metrics;
mod nulls;
mod ollama;
mod openai;
mod openapi;
mod page;
mod record;
mod serve;
mod service;
mod sessions;
mod time;
mod tokens;
mod view;
mod worker;

pub use config::ServerConfig;
pub use info::ModelInfo;
pub use local_page::LocalPage;
pub use serve::{ServeError, Server};
