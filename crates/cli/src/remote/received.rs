//! A streamed answer in OpenAI's dialect as it comes: events in, pieces out, collected into a reply.

use anyhow::{Result, bail};
use mambo_runtime::{FinishReason, Piece, Reply};
use serde_json::{Value, json};

use super::refusal::message_of;

/// What has come of an answer.
pub struct Received {
    /// Text, calls, and why it ended.
    pub reply: Reply,
    /// Tokens of the answer, once the server has told.
    pub answer_tokens: Option<usize>,
    /// Tokens per second of prompt and answer, from a server that tells.
    pub speeds: Option<(f64, f64)>,
    /// Log probabilities, as `--json` prints them.
    pub logprobs: Vec<Value>,
    /// The model's name.
    pub model: Option<String>,
    /// Whether the server has said why the answer ended.
    pub is_finished: bool,
    /// Whether the request set a limit of its own.
    is_limited: bool,
    /// The call whose arguments are still coming: its index, name and arguments so far.
    call: Option<(u64, String, String)>,
}

impl Received {
    /// Nothing so far.
    pub fn new(is_limited: bool) -> Received {
        Received {
            reply: Reply::default(),
            answer_tokens: None,
            speeds: None,
            logprobs: Vec::new(),
            model: None,
            is_finished: false,
            is_limited,
            call: None,
        }
    }

    /// Takes an event and returns what is certain with it.
    pub fn take(&mut self, event: &Value) -> Result<Vec<Piece>> {
        if event.get("error").is_some_and(|error| !error.is_null()) {
            bail!("{}", message_of(event));
        }
        if let Some(model) = event["model"].as_str() {
            self.model.get_or_insert_with(|| model.to_owned());
        }
        self.take_usage(event);
        let mut pieces = Vec::new();
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        // Servers differ in the name.
        let reasoning = text(&delta["reasoning_content"]).or_else(|| text(&delta["reasoning"]));
        pieces.extend(reasoning.map(Piece::Reasoning));
        pieces.extend(text(&delta["content"]).or_else(|| text(&choice["text"])).map(Piece::Content));
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            pieces.extend(self.take_call(part));
        }
        self.logprobs.extend(logprobs_of(&choice["logprobs"]));
        if let Some(reason) = choice["finish_reason"].as_str() {
            pieces.extend(self.finish_call());
            self.is_finished = true;
            self.reply.finish = match reason {
                "length" if self.is_limited => FinishReason::Length,
                "length" => FinishReason::Context,
                _ => FinishReason::Stop,
            };
        }
        pieces.iter().for_each(|piece| self.reply.add(piece));
        Ok(pieces)
    }

    fn take_usage(&mut self, event: &Value) {
        let count = |value: &Value| value.as_u64().map(|n| n as usize);
        let usage = &event["usage"];
        if let (Some(prompt), Some(answer)) =
            (count(&usage["prompt_tokens"]), count(&usage["completion_tokens"]))
        {
            let reused = count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0);
            self.reply.prompt_tokens = prompt;
            self.reply.reused_tokens = reused.min(prompt);
            self.answer_tokens = Some(answer);
        }
        let told = &event["mambo"];
        let speeds = told["prompt_tokens_per_second"].as_f64().zip(told["tokens_per_second"].as_f64());
        self.speeds = speeds.or(self.speeds);
    }

    /// Part of a call; the call before it, if that is whole now.
    fn take_call(&mut self, part: &Value) -> Option<Piece> {
        let index = part["index"].as_u64().unwrap_or(0);
        let is_other = self.call.as_ref().is_some_and(|(current, ..)| *current != index);
        let whole = if is_other { self.finish_call() } else { None };
        let (_, name, arguments) = self.call.get_or_insert_with(|| (index, String::new(), String::new()));
        *name += part["function"]["name"].as_str().unwrap_or_default();
        *arguments += part["function"]["arguments"].as_str().unwrap_or_default();
        whole
    }

    fn finish_call(&mut self) -> Option<Piece> {
        let (_, name, arguments) = self.call.take()?;
        let arguments = match arguments.trim() {
            "" => json!({}),
            text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        };
        Some(Piece::ToolCall { name, arguments })
    }
}

/// Tokens with their log probabilities, from either of the dialect's two forms.
fn logprobs_of(logprobs: &Value) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let entry = |one: &Value| json!({"text": one["token"], "logprob": one["logprob"]});
    let chat = list(&logprobs["content"]).into_iter().map(|one| {
        let mut chosen = entry(&one);
        chosen["top"] = list(&one["top_logprobs"]).iter().map(entry).collect();
        chosen
    });
    let plain = list(&logprobs["tokens"]).into_iter().enumerate().map(|(index, token)| {
        let top = logprobs["top_logprobs"][index].as_object().into_iter().flatten();
        let top: Vec<Value> = top.map(|(text, logprob)| json!({"text": text, "logprob": logprob})).collect();
        json!({"text": token, "logprob": logprobs["token_logprobs"][index], "top": top})
    });
    chat.chain(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(events: &[Value]) -> (Received, Vec<Piece>) {
        let mut received = Received::new(false);
        let pieces = events.iter().flat_map(|event| received.take(event).unwrap()).collect();
        (received, pieces)
    }

    fn delta(delta: Value) -> Value {
        json!({"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn finish(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    #[test]
    fn calls_that_come_in_parts_are_shown_whole() {
        let part = |index: u64, name: Option<&str>, arguments: &str| {
            delta(
                json!({"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]}),
            )
        };
        let events = [
            delta(json!({"role": "assistant", "content": ""})),
            delta(json!({"reasoning": "hm"})),
            part(0, Some("a"), "{\"x\""),
            part(0, None, ": 1}"),
            part(1, Some("b"), ""),
            finish("tool_calls"),
        ];
        let (received, pieces) = take_all(&events);
        let call = |name: &str, arguments| Piece::ToolCall { name: name.to_owned(), arguments };
        let want = [Piece::Reasoning("hm".into()), call("a", json!({"x": 1})), call("b", json!({}))];
        assert_eq!(pieces, want);
        assert_eq!(received.reply.finish, FinishReason::Stop);
        assert_eq!((received.reply.tool_calls.len(), received.model.as_deref()), (2, Some("m")));
    }

    #[test]
    fn a_limit_that_nobody_asked_for_is_the_context() {
        let (received, _) = take_all(&[finish("length")]);
        assert_eq!(received.reply.finish, FinishReason::Context);
        let mut limited = Received::new(true);
        limited.take(&finish("length")).unwrap();
        assert_eq!(limited.reply.finish, FinishReason::Length);
    }

    #[test]
    fn an_error_within_the_stream_is_an_error() {
        let event = json!({"error": {"message": "the time for this request is over"}});
        let error = Received::new(false).take(&event).unwrap_err();
        assert_eq!(error.to_string(), "the time for this request is over");
    }
}
