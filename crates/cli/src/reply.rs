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

/// Takes the pieces of an answer as they come.
pub type Show<'a> = &'a mut dyn FnMut(&Piece) -> Result<()>;

/// A reply and how long it took.
pub struct Timed {
    /// What came of the prompt.
    pub reply: Reply,
    /// Tokens of the answer; unknown, like those of the prompt, where a server does not tell or was stopped before.
    pub answer_tokens: Option<usize>,
    /// Log probabilities of the answer's tokens, where they were asked for.
    pub logprobs: Vec<Value>,
    /// Tokens per second of prompt and answer.
    pub speeds: (f64, f64),
}

/// Runs one prompt to its end or to Ctrl-C, and shows every piece as soon as it is certain.
pub fn answer(
    engine: &mut Engine,
    text: &ModelText,
    prompt: Prompt,
    options: GenerateOptions,
    interrupt: &Interrupt,
    show: Show,
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
    let answer_tokens = reply.choices.len();
    let speeds = speeds(&reply, answer_tokens, prefill, start.elapsed().saturating_sub(prefill));
    let logprobs = reply.choices.iter().filter_map(|choice| logprobs(choice, text)).collect();
    Ok(Timed { reply, answer_tokens: Some(answer_tokens), logprobs, speeds })
}

/// Tokens per second of prompt and answer, from the times until the first token and from there to the last.
pub fn speeds(reply: &Reply, answer_tokens: usize, prefill: Duration, decode: Duration) -> (f64, f64) {
    let ran = (reply.prompt_tokens - reply.reused_tokens) as f64;
    let made = answer_tokens.saturating_sub(1) as f64;
    (ran / prefill.as_secs_f64().max(1e-9), made / decode.as_secs_f64().max(1e-9))
}

impl Timed {
    /// Tokens and speeds in words.
    pub fn amounts(&self) -> String {
        let (reply, (prefill, decode)) = (&self.reply, self.speeds);
        let Some(answer) = self.answer_tokens else { return "the server told no token counts".to_owned() };
        let reused = match reply.reused_tokens {
            0 => String::new(),
            reused => format!(" ({reused} reused)"),
        };
        format!(
            "{} prompt tokens{reused} at {prefill:.0}/s, {answer} answer tokens at {decode:.1}/s",
            reply.prompt_tokens
        )
    }

    /// Everything as JSON; what is not known is null.
    pub fn to_json(&self) -> Value {
        let reply = &self.reply;
        let known = |value: Value| self.answer_tokens.map(|_| value);
        let calls: Vec<Value> = reply
            .tool_calls
            .iter()
            .map(|(name, arguments)| json!({"name": name, "arguments": arguments}))
            .collect();
        // A server tells how many tokens it chose, not which.
        let tokens: Vec<u32> = reply.choices.iter().map(|c| c.token).collect();
        let tokens = (self.answer_tokens == Some(tokens.len())).then_some(tokens);
        let mut object = json!({
            "content": reply.content,
            "reasoning": reply.reasoning,
            "tool_calls": calls,
            "finish_reason": reply.finish_name(),
            "tokens": tokens,
            "prompt_tokens": known(reply.prompt_tokens.into()),
            "reused_tokens": known(reply.reused_tokens.into()),
            "completion_tokens": self.answer_tokens,
            "prefill_tokens_per_second": known(self.speeds.0.into()),
            "decode_tokens_per_second": known(self.speeds.1.into()),
        });
        if !self.logprobs.is_empty() {
            object["logprobs"] = self.logprobs.clone().into();
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
