//! What requests look like in OpenAI's dialect, with the fields that other servers added and clients send.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::describe::{ChatMessage, ChatTool, ResponseFormat, ToolChoiceField};
use crate::chat::{Common, Format, Sampling, ToolChoice};
use crate::error::{ApiError, Kind};
use crate::nulls::null_is_default;
use crate::service::Service;

/// One string or several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

/// What streams carry besides the answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Whether a last chunk tells the tokens used.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub include_usage: bool,
    /// Whether that chunk also tells when the engine gave each token; for chats.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub token_times: bool,
}

/// Settings that chat and completions share.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct SamplingFields {
    /// How freely tokens are chosen; 0 takes the most likely one. The model's own setting unless given.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Chooses among the most likely tokens that reach this probability together.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Chooses among this many of the most likely tokens; 0 or -1 among all.
    #[schema(minimum = -1, maximum = 1073741824)]
    pub top_k: Option<i64>,
    /// Leaves out tokens less likely than this share of the most likely one.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// Taken from the logits of tokens that the answer has already.
    #[schema(default = 0)]
    pub presence_penalty: Option<f32>,
    /// The same, times how often it has them.
    #[schema(default = 0)]
    pub frequency_penalty: Option<f32>,
    /// Divides the logits of tokens that were seen.
    #[schema(exclusive_minimum = 0, default = 1)]
    pub repetition_penalty: Option<f32>,
    /// The same seed and request give the same answer.
    pub seed: Option<i64>,
    /// Added to the logits of tokens, by id: from -100, which bans a token, to 100.
    #[schema(value_type = Option<Map<String, f32>>, example = json!({"42": -100}))]
    pub logit_bias: Option<Map<String, Value>>,
    /// Strings that end the answer; they are not part of it.
    pub stop: Option<OneOrMany>,
    /// Most tokens of the answer; as many as fit unless given.
    #[schema(minimum = 1, maximum = 1073741824)]
    pub max_tokens: Option<i64>,
    /// Requests of higher priority go first.
    #[schema(default = 0)]
    pub priority: Option<i32>,
    /// Who asks, as your own records call them; the server's log repeats it.
    #[schema(example = "user-1234")]
    pub user: Option<String>,
}

/// A request for an answer in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ChatCompletionRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<ChatMessage>, min_items = 1)]
    pub messages: Vec<Map<String, Value>>,
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// The newer name of `max_tokens`, before which it goes.
    #[schema(minimum = 1, maximum = 1073741824)]
    pub max_completion_tokens: Option<i64>,
    /// Answers to give.
    #[schema(minimum = 1, maximum = 16, default = 1)]
    pub n: Option<i64>,
    /// Whether the answer comes as events.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub stream: bool,
    /// What a stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether to report log probabilities of the answer's tokens.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub logprobs: bool,
    /// The same with so many alternatives of each.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
    /// Tools on offer.
    #[schema(value_type = Option<Vec<ChatTool>>)]
    pub tools: Option<Vec<Map<String, Value>>>,
    /// Which of them may or must be called.
    #[schema(value_type = Option<ToolChoiceField>)]
    pub tool_choice: Option<Value>,
    /// Whether several may be called at once.
    #[schema(default = true)]
    pub parallel_tool_calls: Option<bool>,
    /// The form that the answer must have.
    #[schema(value_type = Option<ResponseFormat>)]
    pub response_format: Option<Map<String, Value>>,
    /// `none` and `minimal` do not think; `low`, `medium`, `high` and `xhigh` do.
    #[schema(pattern = "^(none|minimal|low|medium|high|xhigh)$")]
    pub reasoning_effort: Option<String>,
    /// Further variables of the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// A prompt as completions take it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PromptField {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// A request to go on with text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// Text or tokens, one or several.
    pub prompt: PromptField,
    #[serde(flatten)]
    pub sampling: SamplingFields,
    /// Answers to give to each prompt.
    #[schema(minimum = 1, maximum = 16, default = 1)]
    pub n: Option<i64>,
    /// Whether the answer comes as events.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub stream: bool,
    /// What a stream carries besides.
    pub stream_options: Option<StreamOptions>,
    /// Alternatives to report the log probabilities of.
    #[schema(minimum = 0, maximum = 5)]
    pub logprobs: Option<i64>,
    /// Whether the prompt is repeated before the answer.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub echo: bool,
    /// The form that the answer must have.
    #[schema(value_type = Option<ResponseFormat>)]
    pub response_format: Option<Map<String, Value>>,
}

/// A count between two bounds.
pub(super) fn count(
    field: &str,
    value: Option<i64>,
    least: i64,
    most: i64,
) -> Result<Option<usize>, ApiError> {
    match value {
        None => Ok(None),
        Some(value) if (least..=most).contains(&value) => Ok(Some(value as usize)),
        Some(value) => {
            Err(ApiError::field(field, format!("is {value}; it must be between {least} and {most}")))
        }
    }
}

impl SamplingFields {
    /// The settings, with what chat and completions spell in their own ways.
    pub fn into_common(
        self,
        max_tokens: Option<i64>,
        logprobs: Option<usize>,
        format: Format,
    ) -> Result<Common, ApiError> {
        let mut logit_bias = Vec::new();
        for (token, bias) in self.logit_bias.into_iter().flatten() {
            let id = token.parse::<u32>();
            let id = id.map_err(|_| ApiError::field("logit_bias", format!("`{token}` is not a token id")))?;
            let bias = bias.as_f64().filter(|bias| bias.abs() <= 100.0);
            let bias =
                bias.ok_or_else(|| ApiError::field("logit_bias", "a bias is a number from -100 to 100"))?;
            // As OpenAI has it, -100 bans a token.
            logit_bias.push((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias as f32 }));
        }
        let stop = self.stop.map(OneOrMany::into_vec).unwrap_or_default();
        // Others write -1 for all of them.
        let top_k = self.top_k.map(|k| if k == -1 { 0 } else { k });
        Ok(Common {
            sampling: Sampling {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: count("top_k", top_k, 0, 1 << 30)?,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed.map(i64::cast_unsigned),
                logit_bias,
                logprobs,
            },
            max_tokens: count("max_tokens", max_tokens.or(self.max_tokens), 1, 1 << 30)?,
            stop,
            priority: self.priority,
            format,
            token_times: false,
        })
    }
}

/// The form that `response_format` asks for.
pub(super) fn format(field: Option<Map<String, Value>>) -> Result<Format, ApiError> {
    let Some(field) = field else { return Ok(Format::Text) };
    let wrong = |problem: &str| ApiError::field("response_format", problem);
    let text = |key: &str| {
        let text = field.get(key).or(field.get("grammar")).and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| wrong(&format!("needs `{key}`, a string")))
    };
    match field.get("type").and_then(Value::as_str) {
        Some("text") => Ok(Format::Text),
        Some("json_object") => Ok(Format::JsonObject),
        Some("json_schema") => {
            let schema =
                field.get("json_schema").and_then(|inner| inner.get("schema")).or(field.get("schema"));
            let schema = schema.filter(|schema| schema.is_object() || schema.is_boolean());
            schema
                .cloned()
                .map(Format::JsonSchema)
                .ok_or_else(|| wrong("needs `json_schema.schema`, an object"))
        }
        Some("regex") => text("regex").map(Format::Regex),
        Some("lark") => text("lark").map(Format::Lark),
        _ => Err(wrong("`type` must be `text`, `json_object`, `json_schema`, `regex` or `lark`")),
    }
}

/// Which tools may be called.
pub(super) fn tool_choice(field: Option<Value>) -> Result<ToolChoice, ApiError> {
    let named = |value: &Value| {
        value.pointer("/function/name").or(value.get("name")).and_then(Value::as_str).map(str::to_owned)
    };
    match field {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => Err(ApiError::field("tool_choice", format!("`{word}` is not `auto`, `none` or `required`"))),
        },
        Some(value) => named(&value).map(ToolChoice::Named).ok_or_else(|| {
            ApiError::field(
                "tool_choice",
                "names no function; write {\"type\": \"function\", \"function\": {\"name\": ...}}",
            )
        }),
    }
}

/// Whether to think, by an effort.
pub(super) fn thinking(effort: Option<&str>) -> Result<Option<bool>, ApiError> {
    match effort {
        None => Ok(None),
        Some("none" | "minimal") => Ok(Some(false)),
        Some("low" | "medium" | "high" | "xhigh") => Ok(Some(true)),
        Some(other) => Err(ApiError::field(
            "reasoning_effort",
            format!("`{other}` is not `none`, `minimal`, `low`, `medium` or `high`"),
        )),
    }
}

/// An error as OpenAI's clients expect it.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let kind = match error.kind {
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::Busy => "rate_limit_error",
        Kind::Internal | Kind::Unavailable | Kind::Timeout => "server_error",
        _ => "invalid_request_error",
    };
    let code = match error.kind {
        Kind::NotFound => json!("not_found"),
        Kind::Busy => json!("queue_full"),
        _ => Value::Null,
    };
    json!({"error": {"message": error.message, "type": kind, "param": error.field, "code": code}})
}

/// The list of models.
pub(crate) fn models(service: &Service) -> Value {
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": service.started, "owned_by": "mambo",
            "max_model_len": service.context_tokens,
        })
    };
    json!({"object": "list", "data": service.config.model_names.iter().map(model).collect::<Vec<_>>()})
}
