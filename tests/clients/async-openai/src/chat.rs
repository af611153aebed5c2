//! `/v1/chat/completions`.

use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessageArgs, ChatCompletionRequestMessage,
    ChatCompletionRequestToolMessageArgs, ChatCompletionRequestUserMessage, ChatCompletionStreamOptions,
    ChatCompletionTool, ChatCompletionTools, CreateChatCompletionRequest, CreateChatCompletionRequestArgs,
    CreateChatCompletionResponse, FinishReason, FunctionObjectArgs, ReasoningEffort, ResponseFormat,
    ResponseFormatJsonSchema,
};
use futures_util::StreamExt;
use serde_json::json;

use crate::{Api, MODEL, PARIS, SUM, json, passed, weather_parameters};

fn asked(text: &str) -> ChatCompletionRequestMessage {
    ChatCompletionRequestUserMessage::from(text).into()
}

/// A question without a thought before its answer, the same in every run.
fn request(messages: Vec<ChatCompletionRequestMessage>) -> CreateChatCompletionRequestArgs {
    let mut request = CreateChatCompletionRequestArgs::default();
    request.model(MODEL).temperature(0.0).reasoning_effort(ReasoningEffort::None).messages(messages);
    request
}

async fn answer(api: &Api, request: CreateChatCompletionRequest) -> CreateChatCompletionResponse {
    api.chat().create(request).await.expect("an answer")
}

pub async fn answers(api: &Api) {
    let answer = answer(api, request(vec![asked(SUM)]).build().unwrap()).await;
    let choice = &answer.choices[0];
    assert!(choice.message.content.as_deref().is_some_and(|text| text.contains("42")), "{answer:?}");
    assert_eq!(choice.finish_reason, Some(FinishReason::Stop));
    let usage = answer.usage.expect("usage");
    assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    passed("chat");
}

pub async fn streams(api: &Api) {
    let mut question = request(vec![asked(SUM)]);
    let whole = answer(api, question.build().unwrap()).await;
    question
        .stream_options(ChatCompletionStreamOptions { include_usage: Some(true), include_obfuscation: None });
    let mut stream = api.chat().create_stream(question.build().unwrap()).await.expect("a stream");
    let (mut text, mut finish, mut usage) = (String::new(), None, None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.expect("a chunk");
        for choice in chunk.choices {
            text += choice.delta.content.as_deref().unwrap_or_default();
            finish = finish.or(choice.finish_reason);
        }
        usage = usage.or(chunk.usage);
    }
    assert_eq!(Some(text), whole.choices[0].message.content, "the stream says what the whole answer says");
    assert_eq!(finish, Some(FinishReason::Stop));
    let tokens = usage.map(|usage| usage.completion_tokens);
    assert_eq!(tokens, whole.usage.map(|usage| usage.completion_tokens));
    passed("chat, streamed");
}

pub async fn calls_tools(api: &Api) {
    let function = FunctionObjectArgs::default()
        .name("get_weather")
        .description("Get the weather in a city.")
        .parameters(weather_parameters())
        .build()
        .unwrap();
    let tools = vec![ChatCompletionTools::Function(ChatCompletionTool { function })];
    let mut messages = vec![asked(PARIS)];
    let first = answer(api, request(messages.clone()).tools(tools.clone()).build().unwrap()).await;
    assert_eq!(first.choices[0].finish_reason, Some(FinishReason::ToolCalls), "{first:?}");
    let calls = first.choices[0].message.tool_calls.clone().expect("a call");
    let [ChatCompletionMessageToolCalls::Function(call)] = calls.as_slice() else {
        panic!("one call of a function was expected: {calls:?}");
    };
    assert_eq!(call.function.name, "get_weather");
    assert_eq!(json(&call.function.arguments), json!({"city": "Paris"}));
    let result = ChatCompletionRequestToolMessageArgs::default()
        .tool_call_id(call.id.clone())
        .content(r#"{"weather": "sunny", "celsius": 21}"#)
        .build()
        .unwrap();
    let turn =
        ChatCompletionRequestAssistantMessageArgs::default().tool_calls(calls.clone()).build().unwrap();
    messages.extend([turn.into(), result.into()]);
    let second = answer(api, request(messages).tools(tools.clone()).build().unwrap()).await;
    let content = second.choices[0].message.content.as_deref();
    assert!(content.is_some_and(|text| !text.is_empty()), "{second:?}");

    let mut stream = api
        .chat()
        .create_stream(request(vec![asked(PARIS)]).tools(tools).build().unwrap())
        .await
        .expect("a stream");
    let (mut name, mut arguments) = (String::new(), String::new());
    while let Some(chunk) = stream.next().await {
        for choice in chunk.expect("a chunk").choices {
            for call in choice.delta.tool_calls.into_iter().flatten() {
                let function = call.function.expect("a function");
                name += function.name.as_deref().unwrap_or_default();
                arguments += function.arguments.as_deref().unwrap_or_default();
            }
        }
    }
    assert_eq!((name.as_str(), json(&arguments)), ("get_weather", json!({"city": "Paris"})));
    passed("tools, there and back");
}

pub async fn keeps_to_a_schema(api: &Api) {
    let schema = json!({
        "type": "object", "required": ["sum", "words"], "additionalProperties": false,
        "properties": {
            "sum": {"type": "integer", "minimum": 0, "maximum": 999},
            "words": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
        },
    });
    let json_schema =
        ResponseFormatJsonSchema { name: "sum".into(), schema, strict: Some(true), description: None };
    let format = ResponseFormat::JsonSchema { json_schema };
    let answer = answer(api, request(vec![asked(SUM)]).response_format(format).build().unwrap()).await;
    let value = json(answer.choices[0].message.content.as_deref().expect("content"));
    let words = value["words"].as_array().expect("words");
    assert!(value["sum"].as_u64().is_some_and(|sum| sum <= 999), "{value}");
    let is_short = |word: &serde_json::Value| word.as_str().is_some_and(|word| word.chars().count() <= 9);
    assert!(words.len() <= 3 && words.iter().all(is_short), "{value}");
    assert_eq!(value.as_object().map(|object| object.len()), Some(2), "{value}");
    passed("structured output");
}

pub async fn tells_logprobs(api: &Api) {
    let mut question = request(vec![asked(SUM)]);
    question.max_completion_tokens(5_u32).logprobs(true).top_logprobs(3_u8);
    let answer = answer(api, question.build().unwrap()).await;
    let tokens = answer.choices[0].logprobs.as_ref().and_then(|all| all.content.as_ref()).expect("logprobs");
    assert_eq!(Some(tokens.len() as u32), answer.usage.as_ref().map(|usage| usage.completion_tokens));
    for token in tokens {
        assert_eq!(token.top_logprobs.len(), 3, "{token:?}");
        // At temperature 0 the most likely token is taken.
        let best = &token.top_logprobs[0];
        assert_eq!((&best.token, best.logprob), (&token.token, token.logprob), "{token:?}");
        assert!(token.logprob <= 0.0, "{token:?}");
    }
    passed("logprobs");
}

pub async fn refuses_in_words(api: &Api) {
    let refused = api.chat().create(request(vec![asked(SUM)]).model("other").build().unwrap()).await;
    let Err(OpenAIError::ApiError(error)) = refused else {
        panic!("another model was taken, or refused in a form the client does not know: {refused:?}");
    };
    assert!(error.to_string().contains(MODEL), "{error:?}");
    passed("refusals");
}
