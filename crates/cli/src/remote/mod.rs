//! A running server that answers instead of a model of our own: any that speaks OpenAI's dialect over plain HTTP.

mod address;
mod connection;
mod http;
mod received;
mod refusal;
mod request;

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use mambo_runtime::{ChatRequest, Conversation, SamplingParams};
use serde_json::Value;

use crate::args::SampleArgs;
use crate::interrupt::Interrupt;
use crate::partner::Partner;
use crate::reply::{Show, Timed, speeds};
use crate::small_file;
use address::Address;
use connection::Connection;
use http::{Head, Response};
use received::Received;
use refusal::{Refusal, ended_early, gave_up, no_answer, no_connection};
use request::Settings;

/// Most bytes of an event, or of the body of a refusal.
const LONGEST_EVENT: u64 = 16 << 20;

/// Which server, if any.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Ask the server at this address, such as http://127.0.0.1:8080, and load no model; -m names one of its models
    #[arg(long, value_name = "URL", conflicts_with_all = ["context", "backend", "device", "threads", "kv_type", "state_type", "chunk"])]
    pub server: Option<Address>,
    /// File whose first line is the server's API key
    #[arg(long, value_name = "FILE", requires = "server")]
    pub api_key_file: Option<PathBuf>,
}

/// A server to ask, and how.
pub struct Remote<'a> {
    address: &'a Address,
    settings: Settings<'a>,
    key: Option<String>,
    key_file: Option<&'a Path>,
    /// The name that the last answer gave its model.
    model: Option<String>,
}

impl<'a> Remote<'a> {
    /// The server that the flags name, if they name one; refuses what no server would take.
    pub fn named(
        args: &'a ServerArgs,
        model: Option<&'a str>,
        tokens: Option<usize>,
        sample: &'a SampleArgs,
    ) -> Result<Option<Remote<'a>>> {
        let Some(address) = &args.server else { return Ok(None) };
        sample.over(&SamplingParams::default())?;
        let key_file = args.api_key_file.as_deref();
        let key = key_file.map(read_key).transpose()?;
        let settings = Settings { model, tokens, sample };
        Ok(Some(Remote { address, settings, key, key_file, model: None }))
    }

    /// Asks for an answer in a conversation.
    pub fn chat(&mut self, chat: ChatRequest, interrupt: &Interrupt, show: Show) -> Result<Timed> {
        let body = request::chat(chat, &self.settings);
        self.ask("chat/completions", &body, interrupt, show)
    }

    /// Asks how a text goes on.
    pub fn complete(&mut self, text: &str, interrupt: &Interrupt, show: Show) -> Result<Timed> {
        let body = request::completion(text, &self.settings);
        self.ask("completions", &body, interrupt, show)
    }

    /// Streams an answer to its end or to Ctrl-C.
    fn ask(&mut self, endpoint: &str, body: &Value, interrupt: &Interrupt, show: Show) -> Result<Timed> {
        let start = Instant::now();
        let mut first = None;
        let mut received = Received::new(self.settings.tokens.is_some());
        let streamed = self.stream(endpoint, body, interrupt, &mut received, &mut |piece| {
            first.get_or_insert_with(Instant::now);
            show(piece)
        });
        match streamed {
            // What came before Ctrl-C is the answer, and leaving here closes the connection.
            Err(_) if interrupt.pressed() => {}
            streamed => streamed?,
        }
        let Received { reply, answer_tokens, logprobs, model, .. } = received;
        self.model = model.or(self.model.take());
        let prefill = first.unwrap_or(start) - start;
        let measured = speeds(&reply, answer_tokens.unwrap_or(0), prefill, start.elapsed() - prefill);
        Ok(Timed { reply, answer_tokens, logprobs, speeds: received.speeds.unwrap_or(measured) })
    }

    fn stream(
        &self,
        endpoint: &str,
        body: &Value,
        interrupt: &Interrupt,
        received: &mut Received,
        show: Show,
    ) -> Result<()> {
        let address = self.address;
        let connection =
            Connection::open(address, interrupt).map_err(|error| no_connection(address, &error))?;
        let path = address.path(endpoint);
        let head = Head { path: &path, authority: &address.authority, key: self.key.as_deref() };
        let response =
            http::post(connection, &head, &body.to_string()).map_err(|error| no_answer(address, &error))?;
        let mut response = self.accepted(response)?;
        loop {
            let mut line = Vec::new();
            let read = response.body.by_ref().take(LONGEST_EVENT).read_until(b'\n', &mut line);
            match read {
                Err(error) => return Err(ended_early(address, &error.to_string())),
                // Some servers close without the last event.
                Ok(0) if received.is_finished => return Ok(()),
                Ok(0) => return Err(ended_early(address, "the connection was closed too early")),
                Ok(_) => {}
            }
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            let data = data.trim_ascii();
            if data == b"[DONE]" {
                return Ok(());
            }
            let event = serde_json::from_slice(data)
                .map_err(|error| ended_early(address, &format!("an event is not JSON, {error}")))?;
            let pieces = received.take(&event).map_err(|error| gave_up(address, &error.to_string()))?;
            pieces.iter().try_for_each(&mut *show)?;
        }
    }

    /// The response, if it is a stream; else why not.
    fn accepted(&self, mut response: Response<Connection>) -> Result<Response<Connection>> {
        let is_stream =
            response.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        match response.status {
            200 if is_stream => return Ok(response),
            200 => bail!("{} does not stream its answers; check --server", self.address),
            _ => {}
        }
        let mut body = Vec::new();
        // What has come will do.
        let _ = Read::take(response.body.by_ref(), LONGEST_EVENT).read_to_end(&mut body);
        let (status, body) = (response.status, String::from_utf8_lossy(&body));
        let (retry_after, key_file) = (response.header("retry-after"), self.key_file);
        Err(Refusal { status, retry_after, body: &body, key_file }.sentence(self.address))
    }
}

impl Partner for Remote<'_> {
    fn name(&self) -> String {
        let told = self.model.as_deref().or(self.settings.model);
        told.map_or_else(|| self.address.to_string(), str::to_owned)
    }

    fn answer(
        &mut self,
        conversation: &mut Conversation,
        user: &str,
        interrupt: &Interrupt,
        show: Show,
    ) -> Result<Timed> {
        self.chat(conversation.request(user), interrupt, show)
    }

    fn context_tokens(&self) -> Option<usize> {
        None
    }

    fn full(&self, tokens: usize) -> String {
        format!(
            "{} ended the answer at {tokens} tokens of conversation, which is all it holds or allows; /reset starts \
             over, a larger --context of the server holds more",
            self.address
        )
    }
}

/// The key in a file; what cannot stand in a header is refused.
fn read_key(path: &Path) -> Result<String> {
    let shown = path.display();
    let text = small_file::read(path)
        .with_context(|| format!("cannot read the key in {shown}; check --api-key-file"))?;
    let key = text.lines().next().unwrap_or_default().trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("the first line of {shown} is no key; write the server's API key there, without spaces");
    }
    Ok(key.to_owned())
}
