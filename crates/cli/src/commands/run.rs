//! `mambo run`: one answer, streamed.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use mambo_cpu::host_memory;
use mambo_engine::human_bytes;
use mambo_runtime::{ChatRequest, GenerateOptions, Piece};
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::open;
use crate::remote::Remote;
use crate::reply::{Show, Timed, answer};
use crate::terminal::{Screen, put_json, put_note};

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let question = read_prompt(args.prompt.as_deref().unwrap_or_default())?;
    let chat = chat_request(args, &question)?;
    let server = Remote::named(&args.server, args.model.model.as_deref(), args.tokens, &args.sample)?;
    let is_local = server.is_none();
    let mut screen = Screen::new();
    // The text to continue comes with its continuation: before it stands the progress of reading it.
    let mut echo = if args.raw { question.as_str() } else { "" };
    let mut show = |piece: &Piece| {
        if !args.json {
            screen.content(std::mem::take(&mut echo))?;
        }
        show_piece(&mut screen, piece, args.json)
    };
    let answered = match server {
        Some(server) => answer_there(server, args, &question, chat, &mut show),
        None => answer_here(args, &question, chat, &mut show),
    };
    if answered.is_err() {
        // The sentence that follows begins a line.
        screen.end()?;
    }
    let timed = answered?;
    if args.json {
        put_json(&timed.to_json())?;
    } else {
        screen.content(echo)?;
        screen.end()?;
        let memory = host_memory::peak()
            .filter(|_| is_local)
            .map_or(String::new(), |bytes| format!(", peak memory {}", human_bytes(bytes)));
        put_note(format_args!("[{}, {}{memory}]", timed.amounts(), timed.reply.finish_name()));
    }
    Ok(())
}

/// Answers with a server's model.
fn answer_there(
    mut server: Remote,
    args: &RunArgs,
    question: &str,
    chat: ChatRequest,
    show: Show,
) -> Result<Timed> {
    let interrupt = Interrupt::install()?;
    match args.raw {
        true => server.complete(question, &interrupt, show),
        false => server.chat(chat, &interrupt, show),
    }
}

/// Answers with a model in this program.
fn answer_here(args: &RunArgs, question: &str, chat: ChatRequest, show: Show) -> Result<Timed> {
    let model = open::model(args.model.model.as_deref())?;
    let text = model.text()?;
    let prompt = if args.raw { text.plain(question) } else { text.chat(chat)? };
    let sampling = Some(args.sample.over(text.sampling())?);
    let mut engine = open::engine(&model, args.model.place, &args.model.load_options())?;
    // Not before: Ctrl-C while a model loads ends the program.
    let interrupt = Interrupt::install()?;
    let options = GenerateOptions { max_tokens: args.tokens, sampling };
    answer(&mut engine, &text, prompt, options, &interrupt, show)
}

/// Puts a piece on the screen unless a JSON object will say it all.
pub fn show_piece(screen: &mut Screen, piece: &Piece, quiet: bool) -> Result<()> {
    if quiet {
        return Ok(());
    }
    match piece {
        Piece::Reasoning(text) => screen.reasoning(text)?,
        Piece::Content(text) => screen.content(text)?,
        Piece::ToolCall { name, arguments } => screen.content(&format!("{name}({arguments})\n"))?,
    }
    Ok(())
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt from standard input")?;
    Ok(text)
}

const MESSAGES: &str = "--messages takes a JSON list of messages, or an object with `messages`";
const TOOLS: &str = "--tools takes a JSON list of tools";

/// What the flags ask the chat template to render.
fn chat_request(args: &RunArgs, prompt: &str) -> Result<ChatRequest> {
    let mut request = match &args.messages {
        Some(path) => given_request(path)?,
        None => {
            let mut messages = Vec::new();
            messages.extend(args.system.as_ref().map(|text| json!({"role": "system", "content": text})));
            messages.push(json!({"role": "user", "content": prompt}));
            ChatRequest::new(messages)
        }
    };
    if let Some(path) = &args.tools {
        request.tools = match read_json(path, TOOLS)? {
            Value::Array(tools) => tools,
            other => bail!("{} holds {}; {TOOLS}", path.display(), kind(&other)),
        };
        request.check().with_context(|| format!("cannot use the tools in {}", path.display()))?;
    }
    if args.no_think {
        request.enable_thinking = Some(false);
    }
    Ok(request)
}

/// A whole request from a file.
fn given_request(path: &Path) -> Result<ChatRequest> {
    let shown = path.display();
    let request = match read_json(path, MESSAGES)? {
        Value::Array(messages) => ChatRequest::new(messages),
        Value::Object(mut object) => {
            let mut list = |name: &str| match object.remove(name) {
                Some(Value::Array(list)) => Ok(list),
                None => Ok(Vec::new()),
                Some(other) => bail!("`{name}` in {shown} is {}; make it a list", kind(&other)),
            };
            let (messages, tools) = (list("messages")?, list("tools")?);
            let enable_thinking = match object.get("enable_thinking") {
                None | Some(Value::Null) => None,
                Some(Value::Bool(thinking)) => Some(*thinking),
                Some(other) => {
                    bail!("`enable_thinking` in {shown} is {}; make it true or false", kind(other))
                }
            };
            ChatRequest { tools, enable_thinking, ..ChatRequest::new(messages) }
        }
        other => bail!("{shown} holds {}; {MESSAGES}", kind(&other)),
    };
    request.check().with_context(|| format!("cannot use the request in {shown}"))?;
    Ok(request)
}

/// What a JSON value is, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The JSON of a file; `expected` says what the flag behind it takes.
fn read_json(path: &Path, expected: &str) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("{} is not JSON: {error}; {expected}", path.display()))
}
