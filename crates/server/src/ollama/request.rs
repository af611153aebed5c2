//! What requests look like in Ollama's dialect, and how they become a chat.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::describe::{FormatField, Message, ThinkField};
use crate::chat::{Chat, Common, Format, Sampling, ToolChoice};
use crate::error::ApiError;
use crate::nulls::null_is_default;
use crate::openai::{ChatTool, text_alone};

/// Settings by the names of llama.cpp.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = OllamaOptions)]
pub(crate) struct Options {
    /// How freely tokens are chosen; 0 takes the most likely one. The model's own setting unless given.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Chooses among this many of the most likely tokens; 0 among all.
    #[schema(minimum = 0)]
    pub top_k: Option<i64>,
    /// Chooses among the most likely tokens that reach this probability together.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Leaves out tokens less likely than this share of the most likely one.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f32>,
    /// The same seed and request give the same answer.
    pub seed: Option<i64>,
    /// Most tokens of the answer; 0 or less means as many as fit.
    pub num_predict: Option<i64>,
    /// Divides the logits of tokens that were seen.
    #[schema(exclusive_minimum = 0)]
    pub repeat_penalty: Option<f32>,
    /// Taken from the logits of tokens that the answer has already.
    pub presence_penalty: Option<f32>,
    /// The same, times how often it has them.
    pub frequency_penalty: Option<f32>,
    /// Strings that end the answer; they are not part of it.
    #[schema(max_items = 16)]
    pub stop: Option<Vec<String>>,
}

/// A request for an answer in a conversation.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = OllamaChatRequest)]
pub(crate) struct ChatRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// The conversation; without one the model is only loaded.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<Vec<Message>>)]
    pub messages: Vec<Map<String, Value>>,
    /// Whether the answer comes as lines.
    #[schema(default = true)]
    pub stream: Option<bool>,
    /// The form that the answer must have.
    #[schema(value_type = Option<FormatField>)]
    pub format: Option<Value>,
    /// How tokens are chosen.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<Options>)]
    pub options: Options,
    /// Tools on offer.
    #[schema(value_type = Option<Vec<ChatTool>>)]
    pub tools: Option<Vec<Map<String, Value>>>,
    /// Whether to think.
    #[schema(value_type = Option<ThinkField>)]
    pub think: Option<Value>,
}

/// A request for an answer to a prompt.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct GenerateRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// The prompt; without one the model is only loaded.
    pub prompt: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// None: this model takes text alone.
    #[schema(value_type = Option<Vec<String>>, max_items = 0)]
    pub images: Option<Value>,
    /// Whether the answer comes as lines.
    #[schema(default = true)]
    pub stream: Option<bool>,
    /// Whether the prompt is to be continued as it is, without a template.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<bool>, default = false)]
    pub raw: bool,
    /// The form that the answer must have.
    #[schema(value_type = Option<FormatField>)]
    pub format: Option<Value>,
    /// How tokens are chosen.
    #[serde(default, deserialize_with = "null_is_default")]
    #[schema(value_type = Option<Options>)]
    pub options: Options,
    /// Whether to think.
    #[schema(value_type = Option<ThinkField>)]
    pub think: Option<Value>,
}

/// A question about the model.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ShowRequest {
    /// The model's name; the one that is served unless given.
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
}

fn common(options: Options, format: Option<Value>) -> Result<Common, ApiError> {
    let format = match format {
        None | Some(Value::Null) => Format::Text,
        Some(Value::String(word)) if word.is_empty() => Format::Text,
        Some(Value::String(word)) if word == "json" => Format::JsonObject,
        Some(schema @ Value::Object(_)) => Format::JsonSchema(schema),
        Some(_) => return Err(ApiError::field("format", "is neither `json` nor a JSON schema")),
    };
    let top_k = options
        .top_k
        .map(|k| usize::try_from(k).map_err(|_| ApiError::field("options.top_k", "is negative")));
    Ok(Common {
        sampling: Sampling {
            temperature: options.temperature,
            top_k: top_k.transpose()?,
            top_p: options.top_p,
            min_p: options.min_p,
            repetition_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            seed: options.seed.map(i64::cast_unsigned),
            ..Sampling::default()
        },
        // Negative numbers mean as many as fit.
        max_tokens: options.num_predict.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
        stop: options.stop.unwrap_or_default(),
        format,
        ..Common::default()
    })
}

/// `true`, `false` or an effort.
fn thinking(field: Option<Value>) -> Result<Option<bool>, ApiError> {
    match field {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(on)),
        Some(Value::String(effort)) => Ok(Some(effort != "none")),
        Some(_) => Err(ApiError::field("think", "is neither `true`, `false` nor an effort")),
    }
}

/// Ollama's calls carry their arguments as objects; others' as text.
fn message(index: usize, mut message: Map<String, Value>) -> Result<Value, ApiError> {
    no_images(format!("messages[{index}].images"), message.get("images"))?;
    text_alone(&format!("messages[{index}].content"), message.get("content"))?;
    if let Some(thinking) = message.remove("thinking") {
        message.insert("reasoning_content".into(), thinking);
    }
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls {
            if let Some(arguments) = call.pointer_mut("/function/arguments").filter(|a| a.is_object()) {
                *arguments = arguments.to_string().into();
            }
        }
    }
    Ok(Value::Object(message))
}

/// Refuses images, which this model cannot see.
fn no_images(field: String, images: Option<&Value>) -> Result<(), ApiError> {
    match images {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(none)) if none.is_empty() => Ok(()),
        Some(_) => Err(ApiError::field(field, "this model takes text alone; leave the images out")),
    }
}

impl ChatRequest {
    pub fn into_chat(self) -> Result<Chat, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "is empty; give at least one message"));
        }
        let messages = self.messages.into_iter().enumerate();
        Ok(Chat {
            messages: messages.map(|(index, one)| message(index, one)).collect::<Result<_, _>>()?,
            tools: self.tools.unwrap_or_default().into_iter().map(Value::Object).collect(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: true,
            thinking: thinking(self.think)?,
            kwargs: Map::new(),
            common: common(self.options, self.format)?,
        })
    }
}

impl GenerateRequest {
    pub fn into_common(self) -> Result<Common, ApiError> {
        no_images("images".into(), self.images.as_ref())?;
        common(self.options, self.format)
    }

    pub fn into_chat(self) -> Result<Chat, ApiError> {
        no_images("images".into(), self.images.as_ref())?;
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": self.prompt.unwrap_or_default()});
        Ok(Chat {
            messages: system.chain([user]).collect(),
            thinking: thinking(self.think)?,
            common: common(self.options, self.format)?,
            ..Chat::default()
        })
    }
}
