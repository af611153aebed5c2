//! Sequences to measure with: random prompts, read before anything is timed.

use std::collections::HashSet;

use anyhow::Result;
use mambo_engine::{Engine, Event, Request, SequenceId};

use crate::progress::PromptBar;

/// What prompts are made of: ids that nothing can predict, the same in every run.
pub struct RandomIds {
    state: u64,
    vocab: u64,
}

impl RandomIds {
    /// Ids below `vocab`.
    pub fn below(vocab: usize) -> Self {
        RandomIds { state: 1, vocab: vocab as u64 }
    }

    /// The next ones.
    pub fn take(&mut self, count: usize) -> Vec<u32> {
        let mut next = || {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.state >> 33) % self.vocab) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}

/// Steps that are decoded before it counts: they warm caches and page tables up.
pub const WARM_UP: usize = 4;
/// Most sequences whose prompts are counted one by one.
const COUNTED: usize = 1 << 16;

/// Tokens that a sequence holds at most when [`start_sequences`] returns: who is ready early goes on decoding while
/// the prompts of the others run, which get what is left of a step.
pub fn started_tokens(sequences: usize, depth: usize, chunk: usize) -> usize {
    let step = chunk.max(sequences);
    let steps = |ready: usize| depth.max(1).div_ceil(step - ready);
    // So many sequences that counting would take long are refused later, for the memory they need.
    (0..sequences.min(COUNTED)).map(steps).fold(depth.saturating_add(1), usize::saturating_add)
}

/// Starts sequences with prompts of `depth` tokens, or of one, and runs until all of them decode.
pub fn start_sequences(
    engine: &mut Engine,
    ids: &mut RandomIds,
    sequences: usize,
    depth: usize,
) -> Result<Vec<SequenceId>> {
    let mut started = Vec::new();
    for _ in 0..sequences {
        let request = Request { prompt: ids.take(depth.max(1)), ..Default::default() };
        started.push(engine.submit(request)?);
    }
    let reading = Reading::new(engine, sequences.saturating_mul(depth));
    let mut ready = HashSet::new();
    for step in 1.. {
        for event in engine.step()? {
            if let Event::Token { id, .. } = event {
                ready.insert(id);
            }
        }
        if ready.len() == sequences {
            break;
        }
        reading.at(step);
    }
    Ok(started)
}

/// Starts a prompt of which `depth` tokens, a multiple of a step's, are read and `left` are not.
pub fn start_prompt(
    engine: &mut Engine,
    ids: &mut RandomIds,
    depth: usize,
    left: usize,
) -> Result<SequenceId> {
    assert!(depth.is_multiple_of(engine.config().step_tokens), "whole steps before");
    let id = engine.submit(Request { prompt: ids.take(depth + left), ..Default::default() })?;
    let reading = Reading::new(engine, depth);
    for step in 1..=depth / engine.config().step_tokens {
        engine.step()?;
        reading.at(step);
    }
    Ok(id)
}

/// Ends sequences.
pub fn cancel_all(engine: &mut Engine, sequences: &mut Vec<SequenceId>) {
    for id in sequences.drain(..) {
        engine.cancel(id);
    }
}

/// Shows how far long prompts are read.
struct Reading {
    bar: Option<PromptBar>,
    step_tokens: usize,
}

impl Reading {
    fn new(engine: &Engine, tokens: usize) -> Self {
        let step_tokens = engine.config().step_tokens;
        Reading { bar: (tokens > 2 * step_tokens).then(|| PromptBar::new(tokens)), step_tokens }
    }

    fn at(&self, step: usize) {
        if let Some(bar) = &self.bar {
            bar.at(step * self.step_tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ready_early_has_room_to_go_on() {
        assert_eq!(started_tokens(1, 0, 512), 2);
        assert_eq!(started_tokens(1, 4096, 512), 4096 + 8 + 1);
        // The last prompt of 64 gets 449 rows of a step, not 512.
        assert!(started_tokens(64, 4096, 512) > 4096 + 546);
        assert_eq!(started_tokens(3, 10, 1), 10 + 4 + 5 + 10 + 1);
        assert!(started_tokens(usize::MAX, 0, 512) < usize::MAX, "and in no time");
    }
}
