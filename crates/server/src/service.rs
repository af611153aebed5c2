//! All that requests share: the model's text side, the worker, settings and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mambo_runtime::ModelText;
use tokio::sync::Semaphore;

use crate::config::ServerConfig;
use crate::disk::Disk;
use crate::error::{ApiError, Kind};
use crate::grammar::Grammars;
use crate::info::ModelInfo;
use crate::live::Watchers;
use crate::metrics::Metrics;
use crate::openai::ResponseStore;
use crate::worker::Worker;

/// One served model.
pub(crate) struct Service {
    pub config: ServerConfig,
    pub text: ModelText,
    pub worker: Worker,
    pub grammars: Grammars,
    pub metrics: Arc<Metrics>,
    pub info: ModelInfo,
    pub context_tokens: usize,
    /// Numbers of an embedding, if the engine gives any.
    pub embedding_size: Option<usize>,
    /// When the server started, in seconds since 1970.
    pub started: i64,
    pub next_id: AtomicU64,
    pub watchers: Watchers,
    pub responses: ResponseStore,
    pub disk: Disk,
    /// Places for work on text that takes long.
    pub text_places: Arc<Semaphore>,
}

impl Service {
    /// A name for something of this server, that no other has.
    pub fn new_id(&self, kind: &str) -> String {
        use std::hash::{BuildHasher, RandomState};
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{kind}-{:016x}{number:08x}", RandomState::new().hash_one(number))
    }

    /// Refuses a field that names a token which the model does not have.
    pub fn check_vocabulary(
        &self,
        field: &str,
        tokens: impl IntoIterator<Item = u32>,
    ) -> Result<(), ApiError> {
        let vocabulary = self.info.vocabulary;
        match tokens.into_iter().find(|token| *token as usize >= vocabulary) {
            Some(token) => Err(ApiError::field(
                field,
                format!("token {token} is outside the vocabulary of {vocabulary}"),
            )),
            None => Ok(()),
        }
    }

    /// The name that the model is listed under.
    pub fn model_name(&self) -> &str {
        self.config.model_names.first().map_or("model", String::as_str)
    }

    /// Whether a request means this model; one that names none means it too.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
        // Ollama's clients add a tag.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        if self.config.model_names.iter().any(|own| own == name || own == plain) || name == "default" {
            return Ok(());
        }
        let known = self.config.model_names.join("`, `");
        let message = format!("there is no model `{name}`; this server has `{known}`");
        Err(ApiError { field: Some("model".into()), ..ApiError::new(Kind::NotFound, message) })
    }
}
