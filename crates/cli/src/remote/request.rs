//! What the flags ask for as a request in OpenAI's dialect.

use mambo_runtime::ChatRequest;
use serde_json::{Map, Value, json};

use crate::args::SampleArgs;

/// Stands for "as many tokens as the context holds" where a server would stop after a few unless told: completions
/// end after 16 tokens in this dialect.
const UNLIMITED_TOKENS: usize = 1 << 30;

/// How to answer, whatever the question.
pub struct Settings<'a> {
    /// The server's name for the model; its own choice if left out.
    pub model: Option<&'a str>,
    /// Most tokens of the answer.
    pub tokens: Option<usize>,
    /// How tokens are chosen; the server's choice where left out.
    pub sample: &'a SampleArgs,
}

/// A conversation to answer.
pub fn chat(request: ChatRequest, settings: &Settings) -> Value {
    let mut body = common(settings);
    body.insert("messages".into(), request.messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.into());
    }
    if let Some(thinking) = request.enable_thinking {
        body.insert("reasoning_effort".into(), if thinking { "medium" } else { "none" }.into());
    }
    if let Some(tokens) = settings.tokens {
        body.insert("max_tokens".into(), tokens.into());
    }
    if let Some(alternatives) = settings.sample.logprobs {
        body.insert("logprobs".into(), true.into());
        body.insert("top_logprobs".into(), alternatives.into());
    }
    Value::Object(body)
}

/// A text to go on with.
pub fn completion(text: &str, settings: &Settings) -> Value {
    let mut body = common(settings);
    body.insert("prompt".into(), text.into());
    body.insert("max_tokens".into(), settings.tokens.unwrap_or(UNLIMITED_TOKENS).into());
    if let Some(alternatives) = settings.sample.logprobs {
        body.insert("logprobs".into(), alternatives.into());
    }
    Value::Object(body)
}

fn common(settings: &Settings) -> Map<String, Value> {
    let sample = settings.sample;
    let bias: Map<String, Value> =
        sample.logit_bias.iter().map(|(token, x)| (token.to_string(), decimal(*x))).collect();
    let fields = [
        ("model", settings.model.map(Value::from)),
        ("stream", Some(true.into())),
        ("stream_options", Some(json!({"include_usage": true}))),
        ("temperature", sample.temp.map(decimal)),
        ("top_k", sample.top_k.map(Value::from)),
        ("top_p", sample.top_p.map(decimal)),
        ("min_p", sample.min_p.map(decimal)),
        ("repetition_penalty", sample.repetition_penalty.map(decimal)),
        ("presence_penalty", sample.presence_penalty.map(decimal)),
        ("frequency_penalty", sample.frequency_penalty.map(decimal)),
        ("seed", sample.seed.map(Value::from)),
        ("logit_bias", (!bias.is_empty()).then_some(Value::Object(bias))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The number as it was typed: 0.7 and not 0.699999988.
fn decimal(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_the_servers_choice() {
        let sample = SampleArgs::default();
        let settings = Settings { model: None, tokens: None, sample: &sample };
        let messages = vec![json!({"role": "user", "content": "Hello!"})];
        let plain = json!({"stream": true, "stream_options": {"include_usage": true}, "messages": messages});
        assert_eq!(chat(ChatRequest::new(messages), &settings), plain);
        assert_eq!(completion("Once", &settings)["max_tokens"], 1 << 30);
    }

    #[test]
    fn every_flag_has_its_field() {
        let sample = SampleArgs {
            temp: Some(0.7),
            top_k: Some(3),
            top_p: Some(0.95),
            min_p: Some(0.1),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(0.25),
            seed: Some(9),
            logit_bias: vec![(42, -1.5)],
            logprobs: Some(2),
        };
        let settings = Settings { model: Some("m"), tokens: Some(5), sample: &sample };
        let request = ChatRequest {
            tools: vec![json!({"type": "function"})],
            enable_thinking: Some(false),
            ..ChatRequest::new(Vec::new())
        };
        let shared = json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "temperature": 0.7, "top_k": 3,
            "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.5,
            "frequency_penalty": 0.25, "seed": 9, "logit_bias": {"42": -1.5}, "max_tokens": 5,
        });
        let with = |more: Value| {
            let mut all = shared.clone();
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let chat_fields = json!({
            "messages": [], "tools": [{"type": "function"}], "reasoning_effort": "none", "logprobs": true,
            "top_logprobs": 2,
        });
        assert_eq!(chat(request, &settings), with(chat_fields));
        assert_eq!(completion("Once", &settings), with(json!({"prompt": "Once", "logprobs": 2})));
    }
}
