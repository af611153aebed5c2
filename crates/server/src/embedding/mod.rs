//! Embeddings: texts become tokens, tokens go through the engine like prompts, and the hidden row of the last one comes
//! back, cut and brought to length 1. What a dialect makes of it is the dialect's.

mod base64;

use std::collections::VecDeque;
use std::time::Instant;

use mambo_engine::{FinishReason, Request, Reuse};
use mambo_runtime::unit_vector;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(crate) use base64::base64;

use crate::asked::Asked;
use crate::error::{ApiError, Kind};
use crate::generation::{End, Usage};
use crate::job::{Job, Update};
use crate::openai::finish_error;
use crate::service::Service;
use crate::worker::Refusal;

/// Most inputs of one request, as OpenAI has it.
const MOST_INPUTS: usize = 2048;

/// What is to be embedded, and how.
#[derive(Debug, Default)]
pub(crate) struct EmbeddingOptions {
    /// Numbers of a vector; all of them if left out.
    pub dimensions: Option<i64>,
    /// Whether inputs that are too long are cut.
    pub truncate: bool,
    pub priority: i32,
}

/// Vectors in the order of their inputs.
#[derive(Debug, Default)]
pub(crate) struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
    /// Those that had been read before.
    cached: Reuse,
}

type Updates = UnboundedReceiver<Update>;

impl Asked {
    /// The tokens of texts to embed; none of an empty one, whatever starts every text.
    pub async fn embedding_tokens(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, ApiError> {
        self.work(move |service| {
            let tokens =
                |text: String| if text.is_empty() { Vec::new() } else { service.text.plain(&text).tokens };
            Ok(texts.into_iter().map(tokens).collect())
        })
        .await
    }

    /// The vectors of inputs; dropping the future cancels what still runs.
    pub async fn embed(
        &self,
        inputs: Vec<Vec<u32>>,
        options: EmbeddingOptions,
    ) -> Result<Embeddings, ApiError> {
        let dimensions = self.dimensions(options.dimensions)?;
        let inputs = self.checked(inputs, options.truncate)?;
        let prompt_tokens = inputs.iter().map(Vec::len).sum();
        let mut embeddings = Embeddings { prompt_tokens, ..Embeddings::default() };
        let done = self.embed_all(inputs, dimensions, options.priority, &mut embeddings).await;
        let usage = Usage { prompt_tokens, reuse: embeddings.cached, ..Usage::default() };
        self.record.note_answer(&usage, Some(if done.is_ok() { "stop" } else { "error" }), true);
        done.map(|()| embeddings)
    }
}

impl Service {
    async fn embed_all(
        &self,
        inputs: Vec<Vec<u32>>,
        dimensions: usize,
        priority: i32,
        embeddings: &mut Embeddings,
    ) -> Result<(), ApiError> {
        let begun = Instant::now();
        // As many at once as there are slots: more would only stand in the way of others.
        let mut running: VecDeque<Updates> = VecDeque::new();
        for tokens in inputs {
            while running.len() >= self.worker.slots() {
                finish_first(&mut running, dimensions, embeddings).await?;
            }
            self.recall(&tokens).await;
            loop {
                match self.start_embedding(&tokens, priority, begun) {
                    Ok(updates) => break running.push_back(updates),
                    // The queue is full of others' requests; once one of ours has ended there is a place.
                    Err(Refusal::Full(_)) if !running.is_empty() => {
                        finish_first(&mut running, dimensions, embeddings).await?;
                    }
                    Err(refusal) => {
                        self.metrics.note_refusal();
                        return Err(refusal.into());
                    }
                }
            }
        }
        while !running.is_empty() {
            finish_first(&mut running, dimensions, embeddings).await?;
        }
        Ok(())
    }

    /// The length of vectors that are asked for.
    fn dimensions(&self, asked: Option<i64>) -> Result<usize, ApiError> {
        let Some(all) = self.embedding_size else {
            let message = "this server was started without embeddings; start it with them";
            return Err(ApiError::new(Kind::Invalid, message));
        };
        match asked {
            None => Ok(all),
            Some(asked) => {
                usize::try_from(asked).ok().filter(|asked| (1..=all).contains(asked)).ok_or_else(|| {
                    ApiError::field("dimensions", format!("is {asked}; this model has between 1 and {all}"))
                })
            }
        }
    }

    fn checked(&self, mut inputs: Vec<Vec<u32>>, truncate: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        if inputs.is_empty() || inputs.len() > MOST_INPUTS {
            let problem = format!("has {} inputs; give between 1 and {MOST_INPUTS}", inputs.len());
            return Err(ApiError::field("input", problem));
        }
        let context = self.context_tokens;
        for (index, tokens) in inputs.iter_mut().enumerate() {
            self.check_vocabulary(&format!("input[{index}]"), tokens.iter().copied())?;
            let problem = match tokens.len() {
                0 => "is empty; give at least one token".to_owned(),
                count if count > context && !truncate => {
                    format!("has {count} tokens, and the context holds {context}; shorten it")
                }
                _ => {
                    tokens.truncate(context);
                    continue;
                }
            };
            return Err(ApiError::field(format!("input[{index}]"), problem));
        }
        Ok(inputs)
    }

    fn start_embedding(&self, tokens: &[u32], priority: i32, begun: Instant) -> Result<Updates, Refusal> {
        let request = Request {
            prompt: tokens.to_vec(),
            embeds: true,
            uses_cache: true,
            priority,
            ..Request::default()
        };
        let (sender, receiver) = unbounded_channel();
        // All inputs of a request share its time.
        let limit = self.config.time_limit.saturating_sub(begun.elapsed());
        self.worker.submit(Job::new(request, sender, limit))?;
        self.metrics.note_prompt(tokens.len());
        Ok(receiver)
    }
}

/// Waits for the input that was started first.
async fn finish_first(
    running: &mut VecDeque<Updates>,
    dimensions: usize,
    into: &mut Embeddings,
) -> Result<(), ApiError> {
    let mut updates = running.pop_front().expect("one is running");
    loop {
        match updates.recv().await {
            Some(Update::Started(reuse)) => into.cached.tokens += reuse.tokens,
            Some(Update::Tokens(_) | Update::Snapshot(_)) => {}
            Some(Update::Embedding(row)) => {
                into.vectors.push(unit_vector(row, dimensions));
                return Ok(());
            }
            Some(Update::Finished(FinishReason::Failed(why))) => return Err((&*why).into()),
            Some(Update::TimedOut) => return Err(finish_error(&End::TimedOut)),
            Some(Update::Finished(_) | Update::ShuttingDown) | None => {
                return Err(finish_error(&End::ShuttingDown));
            }
        }
    }
}
