//! Sequences to measure with: random prompts, read before anything is timed.

use std::sync::Arc;

use anyhow::{Result, bail};
use mambo_engine::{Engine, Event, Request, SequenceId, Snapshot, human_bytes};

use crate::machine;
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

/// What is behind the sequences that are measured: prompts that were read once and are kept, so that every turn starts
/// at the same depth.
pub struct Pasts(Vec<Arc<Snapshot>>);

impl Pasts {
    /// Reads prompts of `depth` tokens, one after the other.
    pub fn read(engine: &mut Engine, ids: &mut RandomIds, sequences: usize, depth: usize) -> Result<Self> {
        if depth == 0 {
            return Ok(Pasts(Vec::new()));
        }
        let reading = Reading::new(engine, sequences.saturating_mul(depth));
        let mut kept: Vec<Arc<Snapshot>> = Vec::new();
        for sequence in 0..sequences {
            if let Some(first) = kept.first() {
                let need = first.bytes().saturating_mul(sequences - sequence) as u64;
                check_room(need, sequences, depth)?;
            }
            let request = Request { prompt: ids.take(depth), snapshot_at: Some(depth), ..Default::default() };
            let id = engine.submit(request)?;
            for step in 1.. {
                let read = engine.step()?.into_iter().find_map(|event| match event {
                    Event::Snapshot { snapshot, .. } => Some(snapshot),
                    _ => None,
                });
                kept.extend(read);
                if kept.len() > sequence {
                    break;
                }
                reading.at(sequence * depth + step * engine.config().step_tokens);
            }
            engine.cancel(id);
        }
        Ok(Pasts(kept))
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
            let mut prompt = resume.as_ref().map_or(Vec::new(), |past| past.tokens().to_vec());
            prompt.extend(ids.take(1));
            started.push(engine.submit(Request { prompt, resume, ..Default::default() })?);
        }
        Ok(started)
    }
}

fn check_room(need: u64, sequences: usize, depth: usize) -> Result<()> {
    match machine::available_memory() {
        Some(room) if room < need => bail!(
            "keeping what {sequences} sequences hold after {depth} tokens takes {} more, and {} are left; lower \
             --depth or the number of sequences",
            human_bytes(need),
            human_bytes(room)
        ),
        _ => Ok(()),
    }
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
        reading.at(step * engine.config().step_tokens);
    }
    Ok(id)
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
