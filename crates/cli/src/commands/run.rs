//! `mambo run`: one answer, streamed.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mambo_engine::Request;
use mambo_text::{ChatRequest, Event as Piece, OutputStyle};
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::model::{EngineUse, Model};
use crate::reply::answer;
use crate::terminal::Screen;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let prompt = read_prompt(&args.prompt)?;
    let model = Model::open(&args.model)?;
    let tokenizer = model.tokenizer()?;
    let tools = args.tools.as_deref().map(read_tools).transpose()?.unwrap_or_default();
    let (ids, style) = if args.raw {
        (tokenizer.encode(&prompt, true), OutputStyle::PLAIN)
    } else {
        let template = model.template(&tokenizer)?;
        let mut messages = Vec::new();
        messages.extend(args.system.as_ref().map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": prompt}));
        let mut request = ChatRequest::new(messages);
        request.tools = tools.clone();
        request.enable_thinking = args.no_think.then_some(false);
        let text = template.render(&request)?;
        (tokenizer.encode(&text, false), OutputStyle::detect(template.source(), &text))
    };
    let interrupt = Interrupt::install()?;
    let mut engine = model.engine(&args.model, EngineUse::default())?;
    let request = Request {
        prompt: ids,
        max_tokens: args.tokens,
        stop_tokens: model.stop_tokens(&tokenizer),
        sampling: args.sample.over(model.sampling_defaults()),
        ..Default::default()
    };
    let mut screen = Screen::new();
    if args.raw && !args.json {
        screen.content(&prompt)?;
    }
    let mut show = |piece: &Piece| show_piece(&mut screen, piece, args.json);
    let reply = answer(&mut engine, &tokenizer, request, style, &tools, &interrupt, &mut show)?;
    if args.json {
        println!("{}", reply.to_json(&tokenizer));
    } else {
        screen.end()?;
        let (prefill, decode) = reply.speeds();
        eprintln!(
            "[{} prompt tokens at {prefill:.0}/s, {} answer tokens at {decode:.1}/s, {}]",
            reply.prompt_tokens,
            reply.choices.len(),
            reply.finish_name()
        );
    }
    Ok(())
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

/// A list of tools from a JSON file.
pub fn read_tools(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the tools in {}", path.display()))?;
    match serde_json::from_str(&text) {
        Ok(Value::Array(tools)) => Ok(tools),
        Ok(_) => bail!("{} is not a JSON list of tools", path.display()),
        Err(error) => bail!("{} is not JSON: {error}", path.display()),
    }
}
