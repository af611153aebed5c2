//! A chat request as every dialect asks it, and how it becomes a prompt, a grammar and a job.

use std::collections::HashSet;
use std::sync::Arc;

use mambo_engine::{Request, SamplingParams};
use mambo_runtime::{ChatRequest, Prompt};
use mambo_text::CallDialect;
use serde_json::{Map, Value};
use tokio::sync::mpsc::unbounded_channel;

use crate::asked::Asked;
use crate::error::{ApiError, Kind};
use crate::generation::{Generation, TextOptions};
use crate::grammar::{CompiledGrammar, Constraint};
use crate::job::Job;
use crate::record::AnswerRecord;
use crate::service::Service;
use crate::time::unix_seconds;

/// Most strings that end an answer, and the longest of them in bytes.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// Which tools may or must be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// None: the model is not told of any.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// The form an answer must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Format {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON after a schema.
    JsonSchema(Value),
    /// Text after a regular expression.
    Regex(String),
    /// Text after a Lark grammar.
    Lark(String),
}

/// How tokens are chosen, where a request says so.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<usize>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub logit_bias: Vec<(u32, f32)>,
    pub logprobs: Option<usize>,
}

/// What every kind of request may ask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    pub sampling: Sampling,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    /// Higher first; none leaves it to the headers.
    pub priority: Option<i32>,
    pub format: Format,
    /// Whether the times of the answer's tokens are told.
    pub token_times: bool,
}

/// A conversation to go on with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chat {
    pub messages: Vec<Value>,
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    pub parallel_tool_calls: bool,
    pub thinking: Option<bool>,
    pub kwargs: Map<String, Value>,
    pub common: Common,
}

/// A prompt with all that is needed to answer it, perhaps several times.
pub(crate) struct Prepared {
    pub prompt: Prompt,
    turn_ends: Vec<usize>,
    common: Common,
    sampling: SamplingParams,
    grammar: Option<CompiledGrammar>,
}

impl Service {
    /// Renders a conversation and checks all that can be checked before it runs.
    pub fn prepare_chat_now(&self, chat: Chat) -> Result<Prepared, ApiError> {
        let (tool_choice, parallel) = (chat.tool_choice.clone(), chat.parallel_tool_calls);
        let (request, mut common) = self.chat_request(chat);
        let (mut prompt, turn_end) = self.text.chat_with_history(request)?;
        if prompt.tools.is_empty() {
            // Nobody could answer a call, so none is begun, and what looks like one is text.
            let open = prompt.style.calls.take().and_then(CallDialect::open);
            let open = open.and_then(|tag| self.text.tokenizer().id_of(tag));
            common.sampling.logit_bias.extend(open.map(|token| (token, f32::NEG_INFINITY)));
        }
        let tokenizer = self.text.tokenizer();
        let constraint = Constraint::of(&tool_choice, parallel, &common.format, &prompt, tokenizer)?;
        self.prepared(prompt, turn_end, common, constraint)
    }

    /// What the template renders, and what it does not see.
    pub fn chat_request(&self, chat: Chat) -> (ChatRequest, Common) {
        let mut request = ChatRequest::new(chat.messages);
        request.tools = if chat.tool_choice == ToolChoice::None { Vec::new() } else { chat.tools };
        request.enable_thinking = chat.thinking;
        request.kwargs = chat.kwargs;
        request.now_unix_s = Some(unix_seconds());
        (request, chat.common)
    }

    /// The same for text or tokens to go on with.
    pub fn prepare_prompt_now(&self, prompt: Prompt, common: Common) -> Result<Prepared, ApiError> {
        let constraint =
            Constraint::of(&ToolChoice::Auto, true, &common.format, &prompt, self.text.tokenizer())?;
        self.prepared(prompt, None, common, constraint)
    }

    fn prepared(
        &self,
        prompt: Prompt,
        turn_end: Option<usize>,
        common: Common,
        constraint: Option<Constraint>,
    ) -> Result<Prepared, ApiError> {
        let sampling = self.sampling(&common.sampling)?;
        if common.stop.len() > MOST_STOPS || common.stop.iter().any(|stop| stop.len() > LONGEST_STOP) {
            let problem =
                format!("has more than {MOST_STOPS} strings, or one of more than {LONGEST_STOP} bytes");
            return Err(ApiError::field("stop", problem));
        }
        // Texts have no such tokens; a prompt that comes as tokens may.
        self.check_vocabulary("prompt", prompt.tokens.iter().copied())?;
        let (tokens, context) = (prompt.tokens.len(), self.context_tokens);
        if tokens >= context {
            let message = format!(
                "the prompt has {tokens} tokens, and the context of {context} must hold it and an answer; shorten it"
            );
            return Err(ApiError::new(Kind::Invalid, message));
        }
        if tokens == 0 {
            return Err(ApiError::new(Kind::Invalid, "the prompt is empty; give at least one token"));
        }
        // A grammar that cannot be compiled is the request's fault, and is told before anything runs.
        let grammar = constraint.map(|constraint| self.grammars.compile(constraint)).transpose()?;
        Ok(Prepared { prompt, turn_ends: turn_end.into_iter().collect(), common, sampling, grammar })
    }

    fn sampling(&self, asked: &Sampling) -> Result<SamplingParams, ApiError> {
        let usual = self.text.sampling();
        let sampling = SamplingParams {
            temperature: asked.temperature.unwrap_or(usual.temperature),
            top_p: asked.top_p.unwrap_or(usual.top_p),
            top_k: asked.top_k.unwrap_or(usual.top_k),
            min_p: asked.min_p.unwrap_or(usual.min_p),
            repetition_penalty: asked.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: asked.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: asked.frequency_penalty.unwrap_or(usual.frequency_penalty),
            seed: asked.seed.unwrap_or_else(random_seed),
            logit_bias: asked.logit_bias.clone(),
            logprobs: asked.logprobs,
        };
        self.check_vocabulary("logit_bias", sampling.logit_bias.iter().map(|(token, _)| *token))?;
        let is_banned = |(token, bias): &(u32, f32)| (*bias == f32::NEG_INFINITY).then_some(*token);
        let banned: HashSet<u32> = sampling.logit_bias.iter().filter_map(is_banned).collect();
        if banned.len() >= self.info.vocabulary {
            return Err(ApiError::field(
                "logit_bias",
                "bans every token; leave some that an answer may have",
            ));
        }
        match sampling.problem() {
            Some(problem) => {
                let field = problem.split([' ', ':']).next().unwrap_or_default().to_owned();
                Err(ApiError { field: Some(field), ..ApiError::new(Kind::Invalid, problem) })
            }
            None => Ok(sampling),
        }
    }
}

impl Asked {
    /// Starts an answer; `index` tells several answers to one request apart.
    pub fn start(&self, prepared: &Prepared, index: usize) -> Result<Generation, ApiError> {
        let Prepared { prompt, turn_ends, common, sampling, grammar } = prepared;
        let mask = grammar.as_ref().map(|grammar| self.grammars.mask(grammar));
        let mut sampling = sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(index as u64);
        let request = Request {
            prompt: prompt.tokens.clone(),
            max_tokens: common.max_tokens,
            stop_tokens: self.text.stop_tokens().to_vec(),
            sampling,
            uses_cache: true,
            turn_ends: turn_ends.clone(),
            priority: common.priority.or(self.priority).unwrap_or(0),
            ..Request::default()
        };
        let (sender, receiver) = unbounded_channel();
        let job = Job::new(request, sender, self.config.time_limit).masked(mask);
        self.worker.submit(job).map_err(|refusal| {
            self.metrics.note_refusal();
            ApiError::from(refusal)
        })?;
        self.metrics.note_prompt(prompt.tokens.len());
        let options = TextOptions {
            style: prompt.style,
            tools: prompt.tools.clone(),
            stop: common.stop.clone(),
            logprobs: common.sampling.logprobs.is_some(),
            token_times: common.token_times,
        };
        if self.config.log_prompts {
            let prompt = self.text.tokenizer().decode(&prompt.tokens, false);
            tracing::info!(id = %self.record.id, prompt, "prompt");
        }
        let record = AnswerRecord::new(Arc::clone(&self.record), index == 0, self.config.log_prompts);
        Ok(Generation::new(&self.text, options, prompt.tokens.len(), receiver, record))
    }
}

/// A seed for a request that names none.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds its hashes from the system's random numbers.
    RandomState::new().hash_one(0)
}
