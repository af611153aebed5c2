//! Loaded models over one text: one by itself, or two against each other.

use std::ops::ControlFlow;

use mambo_engine::Engine;

use super::{Divergence, Likelihood, Windows, log_softmax, score_window};
use crate::{Model, RuntimeError};

/// How far a model is from its base.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Of the model from the base.
    pub divergence: Divergence,
    /// Of the text, by the model.
    pub likelihood: Likelihood,
    /// Of the text, by the base.
    pub base_likelihood: Likelihood,
}

impl Comparison {
    /// Refuses models that cannot be compared: distributions need one vocabulary, and both must read the same
    /// tokens.
    pub fn check(
        (model, windows): (&Model, &Windows),
        (base, base_windows): (&Model, &Windows),
    ) -> Result<(), RuntimeError> {
        let models = [model.name().to_owned(), base.name().to_owned()];
        let (tokens, base_tokens) = (model.spec.vocab, base.spec.vocab);
        if tokens != base_tokens {
            return Err(RuntimeError::VocabularySizes { models, tokens, base_tokens });
        }
        if windows != base_windows {
            return Err(RuntimeError::DifferentTokens { models });
        }
        Ok(())
    }
}

/// Scores the text with both engines; `progress` gets the number of windows done before each, and may stop it.
pub fn compare(
    (model, engine): (&Model, &mut Engine),
    (base, base_engine): (&Model, &mut Engine),
    windows: &Windows,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Comparison, RuntimeError> {
    let (mut found, vocab) = (Comparison::default(), model.spec.vocab);
    for (done, window) in windows.iter().enumerate() {
        if progress(done).is_break() {
            return Err(RuntimeError::Stopped);
        }
        let first = done * windows.length();
        let want = score_window(base, base_engine, window, first)?;
        let got = score_window(model, engine, window, first)?;
        let rows = want.chunks_exact(vocab).zip(got.chunks_exact(vocab));
        for ((want, got), &next) in rows.zip(&window[1..]) {
            let [want, got] = found.divergence.add(want, got);
            found.base_likelihood.add(want[next as usize]);
            found.likelihood.add(got[next as usize]);
        }
    }
    Ok(found)
}

/// Scores the text with one engine; `progress` gets the number of windows done before each, and may stop it.
pub fn perplexity(
    model: &Model,
    engine: &mut Engine,
    windows: &Windows,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Likelihood, RuntimeError> {
    let mut likelihood = Likelihood::default();
    for (done, window) in windows.iter().enumerate() {
        if progress(done).is_break() {
            return Err(RuntimeError::Stopped);
        }
        let logits = score_window(model, engine, window, done * windows.length())?;
        for (row, &next) in logits.chunks_exact(model.spec.vocab).zip(&window[1..]) {
            likelihood.add(log_softmax(row)[next as usize]);
        }
    }
    Ok(likelihood)
}
