//! Runs the async-openai client against a server with the built-in model, as its users do:
//!
//! ```text
//! cargo run --manifest-path tests/clients/async-openai/Cargo.toml -- http://127.0.0.1:8080
//! ```
//!
//! Nothing is told about mambo but the address. A test that fails ends the program with an error.

mod chat;
mod embeddings;
mod responses;

use async_openai::Client;
use async_openai::config::OpenAIConfig;

type Api = Client<OpenAIConfig>;

const MODEL: &str = "tiny-hybrid";
const SUM: &str = "What is 17 + 25?";
const PARIS: &str = "What is the weather in Paris?";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("name the server's address, such as http://127.0.0.1:8080");
        std::process::exit(2);
    };
    let config = OpenAIConfig::new().with_api_base(format!("{address}/v1")).with_api_key("none");
    let api = Client::with_config(config);
    chat::answers(&api).await;
    chat::streams(&api).await;
    chat::calls_tools(&api).await;
    chat::keeps_to_a_schema(&api).await;
    chat::tells_logprobs(&api).await;
    chat::refuses_in_words(&api).await;
    responses::answers_and_goes_on(&api).await;
    responses::streams(&api).await;
    responses::calls_tools(&api).await;
    embeddings::embeds(&api).await;
}

/// Says that a test has passed.
fn passed(name: &str) {
    println!("ok async-openai: {name}");
}

/// The schema of the tool's arguments.
fn weather_parameters() -> serde_json::Value {
    serde_json::json!({
        "type": "object", "properties": {"city": {"type": "string", "description": "The city."}}, "required": ["city"],
    })
}

/// JSON that must be JSON.
fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
