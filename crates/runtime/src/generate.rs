//! One prompt run to its end, for programs that ask one question at a time.

use std::ops::ControlFlow;

use mambo_engine::{Choice, Engine, Event, FinishReason, SamplingParams};
use mambo_text::Event as Piece;

use crate::{ModelText, Prompt, Reply, ReplyStream, RuntimeError};

/// How an answer is generated.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// Most tokens of the answer; by default until a stop token or the end of the context.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen; by default as the model's authors recommend.
    pub sampling: Option<SamplingParams>,
}

/// What happens while an answer is generated.
#[derive(Debug)]
pub enum GenerateEvent<'a> {
    /// A step begins.
    Step {
        /// Prompt tokens that have run.
        read: usize,
        /// Prompt tokens in all.
        prompt: usize,
    },
    /// A token was chosen.
    Token(&'a Choice),
    /// Text that is certain: a tag or a tool call is held back until it is whole.
    Piece(&'a Piece),
}

/// Runs a prompt to its end, or until `on_event` breaks; the reply then holds what was said so far. All text in
/// the reply was an event before.
pub fn generate(
    engine: &mut Engine,
    text: &ModelText,
    prompt: Prompt,
    options: GenerateOptions,
    on_event: &mut dyn FnMut(GenerateEvent) -> ControlFlow<()>,
) -> Result<Reply, RuntimeError> {
    let mut stream = ReplyStream::start(engine, text, prompt, options)?;
    run(engine, &mut stream, on_event);
    // After a break the sequence must not go on.
    for piece in stream.cancel(engine) {
        let _ = on_event(GenerateEvent::Piece(&piece));
    }
    let reply = stream.into_reply();
    match &reply.finish {
        FinishReason::Failed(why) => {
            Err(RuntimeError::Failed { model: text.model_name().to_owned(), why: why.clone() })
        }
        _ => Ok(reply),
    }
}

/// Steps until the sequence has ended or `on_event` breaks.
fn run(
    engine: &mut Engine,
    stream: &mut ReplyStream,
    on_event: &mut dyn FnMut(GenerateEvent) -> ControlFlow<()>,
) {
    let prompt = stream.reply().prompt_tokens;
    let mut stop = false;
    while !stop && !stream.is_finished() {
        let read = engine.position(stream.id()).unwrap_or(0).min(prompt);
        if on_event(GenerateEvent::Step { read, prompt }).is_break() {
            break;
        }
        let events = engine.step();
        for event in events {
            if let Event::Token { id, choice } = &event
                && *id == stream.id()
            {
                stop |= on_event(GenerateEvent::Token(choice)).is_break();
            }
            for piece in stream.take(&event) {
                stop |= on_event(GenerateEvent::Piece(&piece)).is_break();
            }
        }
    }
}
