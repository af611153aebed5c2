//! One request on its way through a dialect: the service, what its headers ask for, and the record of what becomes of
//! it. Long work on text happens here, away from the threads that deliver other answers.

use std::ops::Deref;
use std::sync::Arc;

use mambo_runtime::Prompt;
use tokio::sync::oneshot;

use crate::background;
use crate::chat::{Chat, Common, Prepared};
use crate::error::{ApiError, Kind};
use crate::record::Record;
use crate::service::Service;

/// Work on the text of bodies up to here is over in a moment.
const SHORT_BODY: usize = 4 << 10;

/// A request that is being answered.
#[derive(Clone)]
pub(crate) struct Asked {
    service: Arc<Service>,
    /// What becomes of it.
    pub record: Arc<Record>,
    /// The priority that its headers ask for, for bodies that name none.
    pub priority: Option<i32>,
    /// Whether its text takes long to work on.
    is_long: bool,
}

impl Deref for Asked {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl Asked {
    pub fn new(
        service: Arc<Service>,
        record: Arc<Record>,
        priority: Option<i32>,
        body_bytes: usize,
    ) -> Asked {
        Asked { service, record, priority, is_long: body_bytes > SHORT_BODY }
    }

    /// Renders a conversation and compiles its grammar.
    pub async fn prepare_chat(&self, chat: Chat) -> Result<Prepared, ApiError> {
        self.recalled(self.work(|service| service.prepare_chat_now(chat)).await?).await
    }

    /// The same for text to go on with.
    pub async fn prepare_text(&self, text: String, common: Common) -> Result<Prepared, ApiError> {
        let prepared =
            self.work(move |service| service.prepare_prompt_now(service.text.plain(&text), common));
        self.recalled(prepared.await?).await
    }

    /// The same for tokens to go on with.
    pub async fn prepare_tokens(&self, prompt: Prompt, common: Common) -> Result<Prepared, ApiError> {
        self.recalled(self.work(|service| service.prepare_prompt_now(prompt, common)).await?).await
    }

    /// The same, once what the disk holds of its beginning is in memory.
    async fn recalled(&self, prepared: Prepared) -> Result<Prepared, ApiError> {
        self.recall(&prepared.prompt.tokens).await;
        Ok(prepared)
    }

    /// Does work that may take long on a thread of its own; so many at once, the others wait.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let service = Arc::clone(&self.service);
        let place =
            Arc::clone(&service.text_places).acquire_owned().await.map_err(|_| ApiError::stopping())?;
        let failed =
            || Err(ApiError::new(Kind::Internal, "preparing the request failed; the server's log says why"));
        if !self.is_long {
            let done = tokio::task::spawn_blocking(move || {
                let _place = place;
                work(&service)
            });
            return done.await.unwrap_or_else(|_| failed());
        }
        let core = service.worker.borrow_core().await;
        let (sender, done) = oneshot::channel();
        let started = background::spawn("text", move || {
            let result = work(&service);
            // Place and core are free when the work is done, also where nobody waits for it any more.
            drop((place, core));
            let _ = sender.send(result);
        });
        match started {
            Ok(_) => done.await.unwrap_or_else(|_| failed()),
            Err(_) => failed(),
        }
    }

    /// Refuses a request for more answers than could ever be taken at once.
    pub fn check_count(&self, field: &str, answers: usize) -> Result<(), ApiError> {
        let most = self.worker.most_jobs();
        if answers <= most {
            return Ok(());
        }
        let problem = format!(
            "asks for {answers} answers, and this server takes {most} at once (running and waiting); ask for fewer"
        );
        Err(ApiError::field(field, problem))
    }
}
