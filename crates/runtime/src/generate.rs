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

/// What the caller hears while an answer is generated.
#[derive(Debug)]
pub enum GenerateEvent<'a> {
    /// A step begins. Breaking here stops the answer.
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

/// Runs a prompt to its end; the listener may break it off, and gets the reply so far.
pub fn generate(
    engine: &mut Engine,
    text: &ModelText,
    prompt: Prompt,
    options: GenerateOptions,
    listener: &mut dyn FnMut(GenerateEvent) -> ControlFlow<()>,
) -> Result<Reply, RuntimeError> {
    let mut stream = ReplyStream::start(engine, text, prompt, options)?;
    let _ = run(engine, &mut stream, listener);
    // If it was broken off, nobody waits for the rest.
    for piece in stream.cancel(engine) {
        let _ = listener(GenerateEvent::Piece(&piece));
    }
    let reply = stream.into_reply();
    match &reply.finish {
        FinishReason::Failed(why) => Err(RuntimeError::Failed(why.clone())),
        _ => Ok(reply),
    }
}

/// Steps until the sequence has ended or the listener breaks it off.
fn run(
    engine: &mut Engine,
    stream: &mut ReplyStream,
    listener: &mut dyn FnMut(GenerateEvent) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let prompt = stream.reply().prompt_tokens;
    let mut read = stream.reply().reused_tokens;
    while !stream.is_finished() {
        if listener(GenerateEvent::Step { read: read.min(prompt), prompt }).is_break() {
            return ControlFlow::Break(());
        }
        let events = engine.step();
        read += engine.config().step_tokens;
        for event in events {
            let mut flow = ControlFlow::Continue(());
            if let Event::Token { id, choice } = &event
                && *id == stream.id()
            {
                flow = listener(GenerateEvent::Token(choice));
            }
            for piece in stream.take(&event) {
                if flow.is_continue() {
                    flow = listener(GenerateEvent::Piece(&piece));
                }
            }
            if flow.is_break() {
                return flow;
            }
        }
    }
    ControlFlow::Continue(())
}
