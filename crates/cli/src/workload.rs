//! Sequences to measure with: random prompts, read before anything is timed.

use std::sync::Arc;

use anyhow::{Result, bail};
use mambo_engine::{Engine, Event, FinishReason, Request, SequenceId, Snapshot, SnapshotRoom};

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

/// Contexts of the sequences that are measured: prompts that ran once and are kept as snapshots, so that every
/// repetition starts at the same depth.
pub struct Contexts(Vec<Arc<Snapshot>>);

impl Contexts {
    /// What keeping so many sequences at each of these depths takes.
    pub fn room(sequences: usize, depths: &[usize]) -> SnapshotRoom {
        let deep = depths.iter().filter(|&&depth| depth > 0);
        SnapshotRoom {
            count: sequences.saturating_mul(deep.clone().count()),
            tokens: deep.fold(0, |sum: usize, depth| sum.saturating_add(depth.saturating_mul(sequences))),
            ..SnapshotRoom::default()
        }
    }

    /// Reads prompts of `depth` tokens, one after the other.
    pub fn read(engine: &mut Engine, ids: &mut RandomIds, sequences: usize, depth: usize) -> Result<Self> {
        if depth == 0 {
            return Ok(Contexts(Vec::new()));
        }
        let reading = Reading::new(engine, sequences.saturating_mul(depth));
        let read =
            |sequence| read_one(engine, ids.take(depth), |tokens| reading.at(sequence * depth + tokens));
        Ok(Contexts((0..sequences).map(read).collect::<Result<_>>()?))
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|snapshot| snapshot.bytes() as u64).sum()
    }

    /// Starts as many sequences, all of which decode from the next step on.
    pub fn start(
        &self,
        engine: &mut Engine,
        ids: &mut RandomIds,
        sequences: usize,
    ) -> Result<Vec<SequenceId>> {
        let mut started = Vec::new();
        for sequence in 0..sequences {
            let resume = self.0.get(sequence).cloned();
            let mut prompt = resume.as_ref().map_or(Vec::new(), |snapshot| snapshot.tokens().to_vec());
            prompt.extend(ids.take(1));
            started.push(engine.submit(Request { prompt, resume, ..Default::default() })?);
        }
        Ok(started)
    }
}

/// Runs a prompt and takes its snapshot.
fn read_one(engine: &mut Engine, prompt: Vec<u32>, progress: impl Fn(usize)) -> Result<Arc<Snapshot>> {
    let snapshot_at = Some(prompt.len());
    let id = engine.submit(Request { prompt, snapshot_at, ..Default::default() })?;
    let mut steps = 0;
    loop {
        for event in step(engine)? {
            if let Event::Snapshot { snapshot, .. } = event {
                engine.cancel(id);
                return Ok(snapshot);
            }
        }
        steps += 1;
        progress(steps * engine.config().step_tokens);
    }
}

/// Runs a step; what goes wrong with a sequence goes wrong with the measurement.
pub fn step(engine: &mut Engine) -> Result<Vec<Event>> {
    let events = engine.step();
    for event in &events {
        if let Event::Finished { reason: FinishReason::Failed(why), .. } = event {
            bail!("{why}");
        }
    }
    Ok(events)
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
    for steps in 1..=depth / engine.config().step_tokens {
        step(engine)?;
        reading.at(steps * engine.config().step_tokens);
    }
    Ok(id)
}

/// Says what is behind a measurement, if anything is.
pub fn after(depth: usize) -> String {
    if depth > 0 { format!(" after {depth}") } else { String::new() }
}

/// Ends sequences.
pub fn cancel_all(engine: &mut Engine, sequences: Vec<SequenceId>) {
    for id in sequences {
        engine.cancel(id);
    }
}

/// Shows how far long prompts are read.
struct Reading(Option<PromptBar>);

impl Reading {
    fn new(engine: &Engine, tokens: usize) -> Self {
        Reading((tokens > 2 * engine.config().step_tokens).then(|| PromptBar::new(tokens)))
    }

    fn at(&self, tokens: usize) {
        if let Some(bar) = &self.0 {
            bar.at(tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_deep_is_kept() {
        assert_eq!(Contexts::room(3, &[0]), SnapshotRoom::default());
        assert_eq!(Contexts::room(3, &[0, 10, 100]), SnapshotRoom { count: 6, tokens: 330, slots: 0 });
        assert_eq!(Contexts::room(usize::MAX, &[2]).tokens, usize::MAX);
    }
}
