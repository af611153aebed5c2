//! What went wrong with a server, as a sentence that names it and what helps.

use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Error, anyhow};
use serde_json::Value;

use super::address::Address;

/// Most characters of a message that are shown.
const LONGEST_EXCERPT: usize = 800;

/// That there is no connection. The error is told in words: to the program a pipe that broke here must not look like
/// a reader of its output who left.
pub fn no_connection(address: &Address, error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::ConnectionRefused => anyhow!(
            "nothing listens at {address}; start a server there with `mambo serve --port {}`, or check --server",
            address.port
        ),
        _ => anyhow!("cannot connect to {address}: {error}; check --server"),
    }
}

/// That the connection did not carry an answer.
pub fn no_answer(address: &Address, error: &io::Error) -> Error {
    anyhow!("{address} did not answer: {error}; check --server, and the server's log")
}

/// That an answer began and did not end.
pub fn ended_early(address: &Address, why: &str) -> Error {
    anyhow!("the answer of {address} ended early: {why}; ask again, or look into the server's log")
}

/// That the server gave an answer up, for a reason of its own.
pub fn gave_up(address: &Address, why: &str) -> Error {
    anyhow!("{address} gave its answer up: {why}")
}

/// A status that is no success, with what came along.
pub struct Refusal<'a> {
    /// The status.
    pub status: u16,
    /// Seconds that the server asks to wait.
    pub retry_after: Option<&'a str>,
    /// The body.
    pub body: &'a str,
    /// The file whose key was sent.
    pub key_file: Option<&'a Path>,
}

impl Refusal<'_> {
    /// The sentence.
    pub fn sentence(&self, address: &Address) -> Error {
        let json: Value = serde_json::from_str(self.body).unwrap_or_default();
        let message = match &json {
            Value::Null => excerpt(self.body),
            json => message_of(json),
        };
        match (self.status, self.key_file) {
            (401, Some(file)) => {
                anyhow!("{address} refuses the key in {}; check --api-key-file", file.display())
            }
            (401, None) => anyhow!(
                "{address} asks for an API key; write it into a file and give that with --api-key-file FILE"
            ),
            (404, _) if message.contains("model") => {
                anyhow!("{address}: {message}; -m names a model of the server")
            }
            (404, _) => anyhow!(
                "{address} has no chat or completions in OpenAI's dialect ({message}); check --server, such as \
                 http://127.0.0.1:8080"
            ),
            (429, _) => {
                let wait = self.retry_after.map_or(String::new(), |s| format!("; it asks to wait {s} s"));
                anyhow!("{address} is busy: {message}{wait}")
            }
            (status, _) => anyhow!("{address} answers with status {status}: {message}"),
        }
    }
}

/// The message of an error object, wherever servers put it.
pub fn message_of(body: &Value) -> String {
    let error = &body["error"];
    let places = [&error["message"], error, &body["message"], &body["detail"]];
    let text = places.into_iter().find_map(Value::as_str).map(str::to_owned);
    excerpt(&text.unwrap_or_else(|| body.to_string()))
}

/// The beginning of a text, on one line and without what a terminal would obey.
fn excerpt(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let plain = plain.trim();
    match plain.char_indices().nth(LONGEST_EXCERPT) {
        _ if plain.is_empty() => "it says nothing".to_owned(),
        Some((end, _)) => format!("{}...", &plain[..end]),
        None => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_server_and_what_helps() {
        let address: Address = "http://h:1".parse().unwrap();
        let model = r#"{"error": {"message": "there is no model `x`; this server has `y`"}}"#;
        let busy = r#"{"error": {"message": "256 requests wait already"}}"#;
        let key = Some(Path::new("key.txt"));
        let cases = [
            (401, None, "", None, "http://h:1 asks for an API key; write it into a file"),
            (401, None, "", key, "http://h:1 refuses the key in key.txt; check --api-key-file"),
            (404, None, model, None, "http://h:1: there is no model `x`; this server has `y`; -m names"),
            (
                404,
                None,
                "<html>",
                None,
                "http://h:1 has no chat or completions in OpenAI's dialect (<html>);",
            ),
            (
                429,
                Some("2"),
                busy,
                None,
                "http://h:1 is busy: 256 requests wait already; it asks to wait 2 s",
            ),
            (
                500,
                None,
                "{\"detail\": \"a\\u001b[2m\\nb\"}",
                None,
                "http://h:1 answers with status 500: a [2m b",
            ),
            (502, None, "", None, "http://h:1 answers with status 502: it says nothing"),
        ];
        for (status, retry_after, body, key_file, want) in cases {
            let sentence = Refusal { status, retry_after, body, key_file }.sentence(&address).to_string();
            assert!(sentence.starts_with(want), "{sentence}");
        }
    }
}
