//! One answer on its way to the screen: the prompt's progress, Ctrl-C, times, and everything as JSON.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Result;
use mambo_runtime::{
    Choice, Engine, GenerateEvent, GenerateOptions, ModelText, Piece, Prompt, Reply, generate,
};
use serde_json::{Value, json};

use crate::hints::{about_tokens, with_hint};
use crate::interrupt::Interrupt;
use crate::progress::PromptBar;

/// A reply and how long it took.
pub struct Timed {
    /// What came of the prompt.
    pub reply: Reply,
    /// Until the first token.
    prefill: Duration,
    /// From the first token to the last.
    decode: Duration,
}

/// Runs one prompt to its end or to Ctrl-C, and shows every piece as soon as it is certain.
pub fn answer(
    engine: &mut Engine,
    text: &ModelText,
    prompt: Prompt,
    options: GenerateOptions,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&Piece) -> Result<()>,
) -> Result<Timed> {
    let new_tokens = prompt.tokens.len() - prompt.reused_tokens();
    let is_long = new_tokens > 2 * engine.config().step_tokens;
    let mut reading = is_long.then(|| PromptBar::new(prompt.tokens.len()));
    let start = Instant::now();
    let mut prefill = None;
    let mut shown = Ok(());
    let answered = generate(engine, text, prompt, options, &mut |event| match event {
        GenerateEvent::Step { read, .. } => {
            if let Some(bar) = &reading {
                bar.at(read);
            }
            interrupt.flow()
        }
        GenerateEvent::Token(_) => {
            // The line must be gone before the answer begins.
            reading = None;
            prefill.get_or_insert_with(|| start.elapsed());
            ControlFlow::Continue(())
        }
        GenerateEvent::Piece(piece) => {
            if shown.is_ok() {
                shown = show(piece);
            }
            if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    });
    // Prompts come from the model's own tokenizer: only a bias can name a token that it does not have.
    let biased = || Some("--logit-bias names it".to_owned());
    let reply = with_hint(answered, about_tokens, biased)?;
    shown?;
    let prefill = prefill.unwrap_or_default();
    Ok(Timed { reply, prefill, decode: start.elapsed().saturating_sub(prefill) })
}

impl Timed {
    /// Tokens per second of prompt and answer.
    pub fn speeds(&self) -> (f64, f64) {
        let ran = (self.reply.prompt_tokens - self.reply.reused_tokens) as f64;
        let made = self.reply.choices.len().saturating_sub(1) as f64;
        (ran / self.prefill.as_secs_f64().max(1e-9), made / self.decode.as_secs_f64().max(1e-9))
    }

    /// Everything as JSON.
    pub fn to_json(&self, text: &ModelText) -> Value {
        let (prefill, decode) = self.speeds();
        let reply = &self.reply;
        let calls: Vec<Value> = reply
            .tool_calls
            .iter()
            .map(|(name, arguments)| json!({"name": name, "arguments": arguments}))
            .collect();
        let mut object = json!({
            "content": reply.content,
            "reasoning": reply.reasoning,
            "tool_calls": calls,
            "finish_reason": reply.finish_name(),
            "tokens": reply.choices.iter().map(|c| c.token).collect::<Vec<_>>(),
            "prompt_tokens": reply.prompt_tokens,
            "reused_tokens": reply.reused_tokens,
            "completion_tokens": reply.choices.len(),
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": decode,
        });
        if reply.choices.iter().any(|c| c.logprobs.is_some()) {
            object["logprobs"] = reply.choices.iter().filter_map(|choice| logprobs(choice, text)).collect();
        }
        object
    }
}

/// A token with its log probability and the alternatives.
fn logprobs(choice: &Choice, text: &ModelText) -> Option<Value> {
    let word = |token: u32| text.tokenizer().decode(&[token], false);
    let logprobs = choice.logprobs.as_ref()?;
    let top: Vec<Value> =
        logprobs.top.iter().map(|(t, p)| json!({"token": t, "text": word(*t), "logprob": p})).collect();
    let (token, chosen) = (choice.token, logprobs.chosen);
    Some(json!({"token": token, "text": word(token), "logprob": chosen, "top": top}))
}
