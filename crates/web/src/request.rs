//! What JavaScript asks for, as JSON.

use mambo_engine::SamplingParams;
use mambo_runtime::{ChatRequest, ModelText};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::WebError;

/// Most strings that end an answer, and the longest of them in bytes.
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 1024;

/// How tokens are chosen; what is left out is as the model's authors recommend.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
}

/// What every answer may be asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Common {
    /// Most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Strings that end it.
    pub stop: Vec<String>,
    pub sampling: Sampling,
    /// Whether each token's log probability is told.
    pub logprobs: bool,
    /// The seed of a request that names none; there is no chance in here.
    pub random_seed: u64,
}

/// A conversation to go on with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Chat {
    pub messages: Vec<Map<String, Value>>,
    pub tools: Vec<Value>,
    /// Whether the model is to think; by default as its template has it.
    pub thinking: Option<bool>,
    /// Further variables of the chat template.
    pub template: Map<String, Value>,
    /// The time that the template may tell, in seconds since 1970.
    pub now: i64,
    pub common: Common,
}

/// Text to go on with.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Completion {
    pub prompt: String,
    pub common: Common,
}

/// Reads a request.
pub(crate) fn read<T: DeserializeOwned>(json: &str) -> Result<T, WebError> {
    serde_json::from_str(json).map_err(|error| WebError::Request(error.to_string()))
}

impl Chat {
    /// What the template renders.
    pub fn request(self) -> ChatRequest {
        let mut request = ChatRequest::new(self.messages.into_iter().map(Value::Object).collect());
        request.tools = self.tools;
        request.enable_thinking = self.thinking;
        request.kwargs = self.template;
        request.now_unix_s = Some(self.now);
        request
    }
}

impl Common {
    /// Checks what the engine does not, and fills in what the model recommends.
    pub fn sampling(&self, text: &ModelText) -> Result<SamplingParams, WebError> {
        if self.stop.len() > MOST_STOPS || self.stop.iter().any(|stop| stop.len() > LONGEST_STOP) {
            let problem = format!(
                "`stop` has more than {MOST_STOPS} strings, or one of more than {LONGEST_STOP} bytes"
            );
            return Err(WebError::Request(problem));
        }
        let (asked, usual) = (&self.sampling, text.sampling());
        Ok(SamplingParams {
            temperature: asked.temperature.unwrap_or(usual.temperature),
            top_p: asked.top_p.unwrap_or(usual.top_p),
            top_k: asked.top_k.unwrap_or(usual.top_k),
            min_p: asked.min_p.unwrap_or(usual.min_p),
            repetition_penalty: asked.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: asked.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: asked.frequency_penalty.unwrap_or(usual.frequency_penalty),
            seed: asked.seed.unwrap_or(self.random_seed),
            logit_bias: Vec::new(),
            logprobs: self.logprobs.then_some(0),
        })
    }
}
