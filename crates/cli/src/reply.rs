//! One answer: submit a prompt, stream the tokens as parsed text, stop on Ctrl-C.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use mambo_engine::{Choice, Engine, Event, FinishReason, Request, Snapshot};
use mambo_text::{Detokenizer, Event as Piece, OutputParser, OutputStyle, ParseOptions, Tokenizer};
use serde_json::{Value, json};

use crate::interrupt::Interrupt;

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
    let reused = request.resume.as_ref().map(|s| s.tokens().len()).filter(|n| {
        let tokens = request.resume.as_ref().map_or(&[][..], |s| s.tokens());
        *n < request.prompt.len() && request.prompt.starts_with(tokens)
    });
    let stops = request.stop_tokens.clone();
    let mut reply = Reply {
        reasoning: String::new(),
        content: String::new(),
        tool_calls: Vec::new(),
        choices: Vec::new(),
        finish: FinishReason::Cancelled,
        snapshot: None,
        prompt_tokens: request.prompt.len(),
        reused_tokens: reused.unwrap_or(0),
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    };
    let mut detokenizer = Detokenizer::keeping(tokenizer, &style.markers());
    let mut parser = OutputParser::new(style, tools, ParseOptions::default());
    let start = Instant::now();
    let id = engine.submit(request)?;
    let mut running = true;
    while running {
        if interrupt.pressed() {
            engine.cancel(id);
            break;
        }
        for event in engine.step()? {
            match event {
                Event::Token { choice, .. } => {
                    if reply.choices.is_empty() {
                        reply.prefill = start.elapsed();
                    }
                    let text = if stops.contains(&choice.token) {
                        String::new()
                    } else {
                        detokenizer.push(choice.token)
                    };
                    reply.choices.push(choice);
                    for piece in parser.push(&text) {
                        reply.take(&piece, show)?;
                    }
                }
                Event::Snapshot { snapshot, .. } => reply.snapshot = Some(snapshot),
                Event::Finished { reason, .. } => {
                    reply.finish = reason;
                    running = false;
                }
            }
        }
    }
    reply.decode = start.elapsed().saturating_sub(reply.prefill);
    let rest = detokenizer.finish();
    let mut pieces = parser.push(&rest);
    pieces.extend(parser.finish());
    for piece in pieces {
        reply.take(&piece, show)?;
    }
    Ok(reply)
}

impl Reply {
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
