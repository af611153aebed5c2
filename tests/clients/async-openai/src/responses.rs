//! `/v1/responses`.

use async_openai::types::responses::{
    CreateResponse, CreateResponseArgs, FunctionCallOutput, FunctionCallOutputItemParam, FunctionTool,
    InputItem, InputParam, Item, OutputItem, Reasoning, ReasoningEffort, Response, ResponseStreamEvent,
    Status, Tool,
};
use futures_util::StreamExt;
use serde_json::json;

use crate::{Api, MODEL, PARIS, SUM, json, passed, weather_parameters};

/// A question without a thought before its answer, the same in every run.
fn request(input: InputParam) -> CreateResponseArgs {
    let mut request = CreateResponseArgs::default();
    let reasoning = Reasoning { effort: Some(ReasoningEffort::None), ..Reasoning::default() };
    request.model(MODEL).temperature(0.0).instructions("Be brief.").reasoning(reasoning).input(input);
    request
}

fn asked(text: &str) -> InputParam {
    InputParam::Text(text.into())
}

async fn answer(api: &Api, request: CreateResponse) -> Response {
    api.responses().create(request).await.expect("a response")
}

pub async fn answers_and_goes_on(api: &Api) {
    let first = answer(api, request(asked(SUM)).build().unwrap()).await;
    assert_eq!(first.status, Status::Completed);
    assert!(first.output_text().is_some_and(|text| text.contains("42")), "{first:?}");
    let mut more = request(asked("And what is 3 + 4?"));
    let second = answer(api, more.previous_response_id(first.id.clone()).build().unwrap()).await;
    let tokens = |response: &Response| response.usage.as_ref().expect("usage").input_tokens;
    assert!(tokens(&second) > tokens(&first), "the second answer knows of the first");
    assert_eq!(second.previous_response_id, Some(first.id));
    passed("responses");
}

pub async fn streams(api: &Api) {
    let whole = answer(api, request(asked(SUM)).build().unwrap()).await;
    let mut stream =
        api.responses().create_stream(request(asked(SUM)).build().unwrap()).await.expect("a stream");
    let (mut text, mut last) = (String::new(), None);
    while let Some(event) = stream.next().await {
        match event.expect("an event") {
            ResponseStreamEvent::ResponseOutputTextDelta(delta) => text += &delta.delta,
            ResponseStreamEvent::ResponseCompleted(completed) => last = Some(completed.response),
            _ => {}
        }
    }
    let last = last.expect("the stream ends with the whole response");
    assert_eq!(Some(text), whole.output_text());
    assert_eq!(last.output_text(), whole.output_text());
    passed("responses, streamed");
}

pub async fn calls_tools(api: &Api) {
    let tool = Tool::Function(FunctionTool {
        name: "get_weather".into(),
        description: Some("Get the weather in a city.".into()),
        parameters: Some(weather_parameters()),
        ..FunctionTool::default()
    });
    let first = answer(api, request(asked(PARIS)).tools(vec![tool.clone()]).build().unwrap()).await;
    let call = first.output.iter().find_map(|item| match item {
        OutputItem::FunctionCall(call) => Some(call.clone()),
        _ => None,
    });
    let call = call.unwrap_or_else(|| panic!("no call: {first:?}"));
    assert_eq!((call.name.as_str(), json(&call.arguments)), ("get_weather", json!({"city": "Paris"})));
    let output = FunctionCallOutputItemParam {
        call_id: Some(call.call_id.clone()),
        output: FunctionCallOutput::Text("Sunny.".into()),
        id: None,
        status: None,
        name: None,
        namespace: None,
        caller: None,
    };
    let items = vec![InputItem::Item(Item::FunctionCallOutput(output))];
    let mut more = request(InputParam::Items(items));
    let more = more.tools(vec![tool]).previous_response_id(first.id).build().unwrap();
    let second = answer(api, more).await;
    assert!(second.output_text().is_some_and(|text| !text.is_empty()), "{second:?}");
    passed("responses, tools there and back");
}
