//! The pieces of OpenAI's streams. One is written for every token, so they are typed and borrow their text: nothing is
//! built that is not sent.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::service::Service;
use crate::time::unix_seconds;

/// What every object of one answer repeats.
pub(super) struct Head {
    id: String,
    created: i64,
    model: String,
}

impl Head {
    /// For an answer whose id begins with `kind`.
    pub fn new(service: &Service, kind: &str) -> Head {
        Head { id: service.new_id(kind), created: unix_seconds(), model: service.model_name().to_owned() }
    }

    /// An object to which the rest is added.
    pub fn object(&self, kind: &str) -> Map<String, Value> {
        let head = json!({"id": self.id, "object": kind, "created": self.created, "model": self.model});
        let Value::Object(head) = head else { unreachable!("an object was written") };
        head
    }

    /// A piece of one choice.
    pub fn chunk<C>(&self, object: &'static str, choice: C) -> Chunk<'_, C> {
        Chunk { id: &self.id, object, created: self.created, model: &self.model, choices: [choice] }
    }
}

/// A piece of a stream.
#[derive(Serialize)]
pub(super) struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: [C; 1],
}

/// What a piece adds to an answer of a chat.
#[derive(Serialize)]
pub(super) struct ChatChoice<'a> {
    pub index: usize,
    pub delta: ChatDelta<'a>,
    pub logprobs: Value,
    pub finish_reason: Option<&'static str>,
}

/// One of these, or none at the end.
#[derive(Default, Serialize)]
pub(super) struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[Value; 1]>,
}

/// A text, or what a piece adds to it.
#[derive(Serialize)]
pub(super) struct TextChoice<'a> {
    pub index: usize,
    pub text: &'a str,
    pub logprobs: Value,
    pub finish_reason: Option<&'static str>,
}
