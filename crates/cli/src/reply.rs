//! One answer: submit a prompt, stream the tokens as parsed text, stop on Ctrl-C.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use mambo_engine::{Choice, Engine, Event, FinishReason, Request, SequenceId, Snapshot};
use mambo_text::{Detokenizer, Event as Piece, OutputParser, OutputStyle, ParseOptions, Tokenizer};
use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::progress::PromptBar;

/// What came of a request.
pub struct Reply {
    /// The thought.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// Calls of tools: name and arguments.
    pub tool_calls: Vec<(String, Value)>,
    /// Every chosen token, the stop token included.
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The snapshot asked for.
    pub snapshot: Option<Arc<Snapshot>>,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens that a snapshot spared.
    pub reused_tokens: usize,
    /// Until the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Runs one request to its end and shows every piece as soon as it is certain.
pub fn answer(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    request: Request,
    style: OutputStyle,
    tools: &[Value],
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&Piece) -> Result<()>,
) -> Result<Reply> {
    let mut listener = Listener {
        reply: Reply::new(&request),
        detokenizer: Detokenizer::keeping(tokenizer, &style.markers()),
        parser: OutputParser::new(style, tools, ParseOptions::default()),
        stops: request.stop_tokens.clone(),
        start: Instant::now(),
        show,
    };
    let id = engine.submit(request)?;
    let heard = listen(engine, id, interrupt, &mut listener);
    // Whatever went wrong or was pressed, nobody waits for the rest; a sequence that ended is gone already.
    engine.cancel(id);
    heard?;
    listener.finish()
}

/// Steps until the sequence has ended or Ctrl-C is pressed.
fn listen(engine: &mut Engine, id: SequenceId, interrupt: &Interrupt, listener: &mut Listener) -> Result<()> {
    let (reused, prompt) = (listener.reply.reused_tokens, listener.reply.prompt_tokens);
    let chunk = engine.config().step_tokens;
    let mut reading = (prompt - reused > 2 * chunk).then(|| PromptBar::new(prompt));
    let mut read = reused;
    while !interrupt.pressed() {
        let events = engine.step()?;
        read += chunk;
        if let Some(bar) = &reading {
            bar.at(read);
        }
        for event in events {
            match event {
                Event::Token { id: whose, choice } if whose == id => {
                    // The line must be gone before the answer begins.
                    reading = None;
                    listener.token(choice)?;
                }
                Event::Snapshot { id: whose, snapshot } if whose == id => {
                    listener.reply.snapshot = Some(snapshot);
                }
                Event::Finished { id: whose, reason } if whose == id => {
                    listener.reply.finish = reason;
                    return Ok(());
                }
                // Another sequence's; this program runs none beside.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Turns tokens into the reply.
struct Listener<'a> {
    reply: Reply,
    detokenizer: Detokenizer,
    parser: OutputParser,
    stops: Vec<u32>,
    start: Instant,
    show: &'a mut dyn FnMut(&Piece) -> Result<()>,
}

impl Listener<'_> {
    fn token(&mut self, choice: Choice) -> Result<()> {
        if self.reply.choices.is_empty() {
            self.reply.prefill = self.start.elapsed();
        }
        let is_stop = self.stops.contains(&choice.token);
        let text = if is_stop { String::new() } else { self.detokenizer.push(choice.token) };
        self.reply.choices.push(choice);
        for piece in self.parser.push(&text) {
            self.reply.take(&piece, self.show)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Reply> {
        self.reply.decode = self.start.elapsed().saturating_sub(self.reply.prefill);
        let rest = self.detokenizer.finish();
        let mut pieces = self.parser.push(&rest);
        pieces.extend(self.parser.finish());
        for piece in pieces {
            self.reply.take(&piece, self.show)?;
        }
        Ok(self.reply)
    }
}

impl Reply {
    /// A reply to this request that has said nothing yet.
    pub fn new(request: &Request) -> Reply {
        let resumed = request.resume.as_ref().filter(|snapshot| snapshot.begins(&request.prompt));
        Reply {
            reasoning: String::new(),
            content: String::new(),
            tool_calls: Vec::new(),
            choices: Vec::new(),
            finish: FinishReason::Cancelled,
            snapshot: None,
            prompt_tokens: request.prompt.len(),
            reused_tokens: resumed.map_or(0, |snapshot| snapshot.tokens().len()),
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        }
    }

    fn take(&mut self, piece: &Piece, show: &mut dyn FnMut(&Piece) -> Result<()>) -> Result<()> {
        match piece {
            Piece::Reasoning(text) => self.reasoning.push_str(text),
            Piece::Content(text) => self.content.push_str(text),
            Piece::ToolCall { name, arguments } => self.tool_calls.push((name.clone(), arguments.clone())),
        }
        show(piece)
    }

    /// The name of the way it ended, as APIs write it.
    pub fn finish_name(&self) -> &'static str {
        match self.finish {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// Tokens per second of prompt and answer.
    pub fn speeds(&self) -> (f64, f64) {
        let ran = (self.prompt_tokens - self.reused_tokens) as f64;
        let made = self.choices.len().saturating_sub(1) as f64;
        (ran / self.prefill.as_secs_f64().max(1e-9), made / self.decode.as_secs_f64().max(1e-9))
    }

    /// Everything as JSON.
    pub fn to_json(&self, tokenizer: &Tokenizer) -> Value {
        let (prefill, decode) = self.speeds();
        let calls: Vec<Value> = self
            .tool_calls
            .iter()
            .map(|(name, arguments)| json!({"name": name, "arguments": arguments}))
            .collect();
        let mut object = json!({
            "content": self.content,
            "reasoning": self.reasoning,
            "tool_calls": calls,
            "finish_reason": self.finish_name(),
            "tokens": self.choices.iter().map(|c| c.token).collect::<Vec<_>>(),
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "completion_tokens": self.choices.len(),
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
        });
        if self.choices.iter().any(|c| c.logprobs.is_some()) {
            let text = |token: u32| tokenizer.decode(&[token], false);
            let one = |choice: &Choice| {
                let logprobs = choice.logprobs.as_ref()?;
                let top: Vec<Value> = logprobs
                    .top
                    .iter()
                    .map(|(t, p)| json!({"token": t, "text": text(*t), "logprob": p}))
                    .collect();
                Some(
                    json!({"token": choice.token, "text": text(choice.token), "logprob": logprobs.chosen, "top": top}),
                )
            };
            object["logprobs"] = self.choices.iter().filter_map(one).collect();
        }
        object
    }
}
