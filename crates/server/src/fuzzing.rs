//! The request parsers and the grammar front end without a server or a model, for the fuzz targets: bytes are taken,
//! or refused as the client's mistake, and nothing panics. No part of the crate's interface.

use std::sync::LazyLock;

use axum::body::Bytes;
use mambo_runtime::Prompt;
use mambo_text::{CallDialect, GgufVocabulary, OutputStyle, Tokenizer};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::anthropic::MessagesRequest;
use crate::chat::{Format, ToolChoice};
use crate::error::ApiError;
use crate::grammar::{Constraint, Grammars};
use crate::http::parse;
use crate::ollama::{ChatRequest, EmbedRequest, GenerateRequest, OldEmbedRequest, ShowRequest};
use crate::openai::{
    ChatCompletionRequest, CompletionRequest, EmbeddingRequest, ResponsesRequest, chat_of, prompt_of,
};
use crate::sessions::SessionRequest;
use crate::tokens::{DetokenizeRequest, TokenizeRequest};

/// Tokens that are drawn from a grammar that was taken.
const STEPS: usize = 24;

/// Whether bytes are a request in OpenAI's dialect.
pub fn openai(bytes: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(bytes);
    let chat = reads(&body, |request: ChatCompletionRequest| chat_of(request));
    let completion = reads(&body, |request: CompletionRequest| prompt_of(request));
    let response = reads(&body, |request: ResponsesRequest| request.into_chat(Vec::new()));
    let embedding = reads(&body, |request: EmbeddingRequest| Ok(request));
    chat || completion || response || embedding
}

/// Whether bytes are a request in Anthropic's dialect.
pub fn anthropic(bytes: &[u8]) -> bool {
    reads(&Bytes::copy_from_slice(bytes), |request: MessagesRequest| request.into_chat())
}

/// Whether bytes are a request in Ollama's dialect.
pub fn ollama(bytes: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(bytes);
    let chat = reads(&body, |request: ChatRequest| request.into_chat());
    let text =
        reads(&body, |request: GenerateRequest| request.clone().into_common().and(request.into_chat()));
    let show = reads(&body, |request: ShowRequest| Ok(request));
    let embedding = reads(&body, |request: EmbedRequest| Ok(request));
    let old_embedding = reads(&body, |request: OldEmbedRequest| Ok(request));
    chat || text || show || embedding || old_embedding
}

/// Whether bytes are a request that only this server knows.
pub fn own(bytes: &[u8]) -> bool {
    let body = Bytes::copy_from_slice(bytes);
    let text = reads(&body, |request: TokenizeRequest| Ok(request));
    let tokens = reads(&body, |request: DetokenizeRequest| Ok(request));
    let session = reads(&body, |request: SessionRequest| Ok(request));
    text || tokens || session
}

/// Whether bytes are a grammar that compiles, from which tokens are then drawn. The first byte is its form, `0` to
/// `4`: a JSON schema, a regular expression, Lark, tools in a dialect that the length of the text chooses, tools whose
/// calls are blocks of tags.
pub fn grammar(bytes: &[u8]) -> bool {
    let Some((form, text)) = bytes.split_first() else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let json = || serde_json::from_str::<Value>(text).ok();
    let mut prompt = Prompt::new(Vec::new(), OutputStyle::PLAIN);
    let (mut choice, mut format) = (ToolChoice::Auto, Format::Text);
    match form.wrapping_sub(b'0') % 5 {
        0 => match json() {
            Some(schema) => format = Format::JsonSchema(schema),
            None => return false,
        },
        1 => format = Format::Regex(text.into()),
        2 => format = Format::Lark(text.into()),
        calls => {
            let Some(Value::Array(tools)) = json() else { return false };
            let dialect = if calls == 4 {
                CallDialect::Blocks
            } else {
                CallDialect::ALL[text.len() % CallDialect::ALL.len()]
            };
            let channels = dialect == CallDialect::Harmony;
            prompt.style = OutputStyle { calls: Some(dialect), channels, ..OutputStyle::PLAIN };
            (prompt.tools, choice) = (tools, ToolChoice::Required);
        }
    }
    let (tokenizer, grammars) = &*TINY;
    let compiled =
        Constraint::of(&choice, true, &format, &prompt, tokenizer).and_then(|constraint| match constraint {
            Some(constraint) => grammars.compile(constraint).map(Some),
            None => Ok(None),
        });
    let Some(Some(compiled)) = taken(compiled) else { return false };
    let mask = grammars.mask(&compiled);
    let vocabulary = tokenizer.vocab_size();
    let (mut words, mut generated) = (vec![0_u32; vocabulary.div_ceil(32)], Vec::new());
    for step in 0..STEPS {
        words.fill(0);
        mask.allow(&generated, &mut words);
        // Another part of the vocabulary at every step.
        let mut tokens = (0..vocabulary).map(|token| ((token + step * 37) % vocabulary) as u32);
        let Some(next) = tokens.find(|token| words[*token as usize / 32] >> (token % 32) & 1 == 1) else {
            break;
        };
        if tokenizer.eos() == Some(next) {
            break;
        }
        generated.push(next);
    }
    true
}

/// Whether a body is a request of this kind.
fn reads<T: DeserializeOwned, U>(body: &Bytes, convert: impl FnOnce(T) -> Result<U, ApiError>) -> bool {
    taken(parse(body).and_then(convert)).is_some()
}

/// What was taken; a refusal says why, and never that the server is at fault.
fn taken<T>(result: Result<T, ApiError>) -> Option<T> {
    result
        .inspect_err(|error| {
            let (status, message) = (error.kind.status(), &error.message);
            assert!((400..500).contains(&status) && !message.is_empty(), "{status}: {message}");
        })
        .ok()
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A vocabulary of all bytes and a few words, and its grammars.
static TINY: LazyLock<(Tokenizer, Grammars)> = LazyLock::new(|| {
    let mut unprinted = '\u{100}'..;
    let byte = |byte: u8| match byte {
        // How byte-level vocabularies write bytes: those that print as themselves, others from U+0100 on.
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
        _ => unprinted.next().map(String::from).unwrap_or_default(),
    };
    let words = ["true", "null", "\":", "ab", OPEN, CLOSE, "<end>"];
    let tokens: Vec<String> = (0..=255).map(byte).chain(words.map(String::from)).collect();
    // The tags and the end are control tokens, the others are text.
    let token_types = (0..tokens.len()).map(|id| if id + 3 < tokens.len() { 1 } else { 3 }).collect();
    let end = tokens.len() as u32 - 1;
    let (model, pre, eos) = ("gpt2".into(), "gpt-2".into(), Some(end));
    let vocabulary = GgufVocabulary { model, pre, tokens, token_types, eos, ..GgufVocabulary::default() };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("the vocabulary is a good one");
    let grammars = Grammars::new(&tokenizer, &[end], tokenizer.vocab_size());
    (tokenizer, grammars)
});
