//! Two models, or one model in two settings, over one text.

use std::path::Path;

use anyhow::{Context, Result, bail};

use serde_json::json;

use super::{Divergence, Likelihood, Windows, score_window};
use crate::args::ModelArgs;
use crate::interrupt::Interrupt;
use crate::model::{EngineUse, Model};
use crate::progress::CountBar;

/// Tokens of a window unless a flag says otherwise.
pub const DEFAULT_WINDOW: usize = 512;

/// A text file and how it is cut.
#[derive(Clone, Copy, Debug)]
pub struct TextCut<'a> {
    /// The file.
    pub path: &'a Path,
    /// Tokens of a window.
    pub window: usize,
    /// Most windows.
    pub windows: Option<usize>,
}

impl TextCut<'_> {
    /// The text as a model reads it.
    pub fn windows(&self, model: &Model) -> Result<Windows> {
        let text = std::fs::read_to_string(self.path)
            .with_context(|| format!("cannot read the text in {}", self.path.display()))?;
        Windows::new(model.tokenizer()?.encode(&text, true), self.window, self.windows)
            .with_context(|| format!("cannot use the text in {}", self.path.display()))
    }
}

/// How far a model is from its base.
pub struct Comparison {
    /// How the model kept keys and values.
    pub kv_types: String,
    /// How it kept its states.
    pub state_type: String,
    /// Of the model from the base.
    pub divergence: Divergence,
    /// Of the text, by the model.
    pub likelihood: Likelihood,
    /// Of the text, by the base.
    pub base_likelihood: Likelihood,
}

/// Scores the text with both.
pub fn compare(
    (model, args): (&Model, &ModelArgs),
    (base, base_args): (&Model, &ModelArgs),
    text: &TextCut,
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let windows = text.windows(model)?;
    check_same_tokens(model, base, &windows, text)?;
    let usage = EngineUse { at_least_tokens: windows.length(), ..Default::default() };
    let (mut base_engine, mut engine) = (base.engine(base_args, usage)?, model.engine(args, usage)?);
    let vocab = model.spec.vocab;
    let mut found = Comparison {
        kv_types: engine.config().kv_types.to_string(),
        state_type: engine.config().state_elem.name().to_owned(),
        divergence: Divergence::default(),
        likelihood: Likelihood::default(),
        base_likelihood: Likelihood::default(),
    };
    let bar = CountBar::new("windows", windows.count() as u64);
    for window in windows.iter() {
        interrupt.check("nothing was measured")?;
        let want = score_window(&mut base_engine, window, vocab)?;
        let got = score_window(&mut engine, window, vocab)?;
        let rows = want.chunks_exact(vocab).zip(got.chunks_exact(vocab));
        for ((want, got), &next) in rows.zip(&window[1..]) {
            let [want, got] = found.divergence.add(want, got);
            found.base_likelihood.add(want[next as usize]);
            found.likelihood.add(got[next as usize]);
        }
        bar.step(1);
    }
    bar.done();
    Ok(found)
}

/// Distributions can only be compared over one vocabulary, and only where both read the same tokens.
fn check_same_tokens(model: &Model, base: &Model, windows: &Windows, text: &TextCut) -> Result<()> {
    if model.spec.vocab != base.spec.vocab {
        bail!(
            "{} has {} tokens and {} has {}; compare models with one tokenizer",
            model.name(),
            model.spec.vocab,
            base.name(),
            base.spec.vocab
        );
    }
    if !windows.iter().eq(text.windows(base)?.iter()) {
        bail!(
            "{} and {} cut the text into different tokens; compare models with one tokenizer",
            model.name(),
            base.name()
        );
    }
    Ok(())
}

impl Comparison {
    /// Everything in words.
    pub fn text(&self, model: &str, base: &str) -> String {
        let Comparison { kv_types, state_type, .. } = self;
        let tokens = self.divergence.count();
        let mut text = format!(
            "KL divergence of {model} with keys and values {kv_types} and states {state_type} from {base} in f32, over {tokens} tokens\n"
        );
        for (name, value) in self.divergence.summary() {
            text += &format!("  {name:8} {:>10} nats\n", nats(value));
        }
        text += &format!("  same most likely token {:.2}%\n", self.divergence.agreement() * 100.0);
        let (perplexity, base) = (self.likelihood.perplexity().0, self.base_likelihood.perplexity().0);
        text + &format!("  perplexity {perplexity:.4}, of the base {base:.4}\n")
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let mut report = self.divergence.to_json();
        report["kv_type"] = json!(self.kv_types);
        report["state_type"] = json!(self.state_type);
        report["perplexity"] = self.likelihood.to_json();
        report["base_perplexity"] = self.base_likelihood.to_json();
        report
    }
}

/// A divergence for people: plain where that shows something, else with its power of ten.
fn nats(value: f64) -> String {
    if value >= 1e-4 { format!("{value:.6}") } else { format!("{value:.2e}") }
}
