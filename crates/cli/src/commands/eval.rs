//! `mambo eval`: perplexity of a text, and divergence from a base model or from other settings.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::args::{CacheArgs, ModelArgs};
use crate::model::{EngineUse, Model};
use crate::progress::CountBar;
use crate::quality::{Divergence, Likelihood, Windows, log_softmax, score_window, svg_curve};
use crate::terminal::{put, put_json};

/// `mambo eval`
#[derive(Args)]
pub struct EvalArgs {
    /// What to measure.
    #[command(subcommand)]
    pub measure: Measure,
}

/// What can be measured.
#[derive(Subcommand)]
pub enum Measure {
    /// Perplexity of a text
    Ppl(PplArgs),
    /// KL divergence from a base model, or from the same model with its caches and states in f32
    Kld(KldArgs),
}

/// What is measured on.
#[derive(Args)]
pub struct TextArgs {
    /// A text file
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of a window; each is scored from an empty memory
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub window: usize,
    /// Most windows to score; all if left out
    #[arg(long, value_name = "N")]
    pub windows: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `mambo eval ppl`
#[derive(Args)]
pub struct PplArgs {
    /// The text.
    #[command(flatten)]
    pub text: TextArgs,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `mambo eval kld`
#[derive(Args)]
pub struct KldArgs {
    /// The text.
    #[command(flatten)]
    pub text: TextArgs,
    /// The model to compare with, the same if left out; its caches and states are f32 whatever the flags say
    #[arg(long, value_name = "MODEL")]
    pub base: Option<String>,
    /// Write a picture of the divergence
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    match &args.measure {
        Measure::Ppl(args) => perplexity(args),
        Measure::Kld(args) => divergence(args),
    }
}

fn read_windows(args: &TextArgs, model: &Model) -> Result<Windows> {
    let text = std::fs::read_to_string(&args.text)
        .with_context(|| format!("cannot read the text in {}", args.text.display()))?;
    Windows::new(model.tokenizer()?.encode(&text, true), args.window, args.windows)
}

fn perplexity(args: &PplArgs) -> Result<()> {
    let model = Model::open(&args.model)?;
    let windows = read_windows(&args.text, &model)?;
    let usage = EngineUse { at_least_tokens: windows.length(), ..Default::default() };
    let mut engine = model.engine(&args.model, usage)?;
    let vocab = model.spec.vocab;
    let mut likelihood = Likelihood::default();
    let bar = CountBar::new("windows", windows.count() as u64);
    for window in windows.iter() {
        let logits = score_window(&mut engine, window, vocab)?;
        for (row, &next) in logits.chunks_exact(vocab).zip(&window[1..]) {
            likelihood.add(log_softmax(row)[next as usize]);
        }
        bar.step(1);
    }
    bar.done();
    if args.text.json {
        let mut report = likelihood.to_json();
        report["model"] = json!(model.name());
        put_json(&report)?;
    } else {
        let (value, error) = likelihood.perplexity();
        put(&format!(
            "perplexity {value:.4} ± {error:.4}   {:.4} nats per token over {} tokens\n",
            likelihood.mean(),
            windows.predicted()
        ))?;
    }
    Ok(())
}

fn divergence(args: &KldArgs) -> Result<()> {
    let model = Model::open(&args.model)?;
    let base_model = args.base.clone().or_else(|| args.model.model.clone());
    let base_args = ModelArgs { model: base_model, cache: CacheArgs::EXACT, ..args.model.clone() };
    let base = Model::open(&base_args)?;
    let windows = read_windows(&args.text, &model)?;
    check_same_tokens(&model, &base, &args.text)?;
    let usage = EngineUse { at_least_tokens: windows.length(), ..Default::default() };
    let (mut base_engine, mut engine) = (base.engine(&base_args, usage)?, model.engine(&args.model, usage)?);
    let vocab = model.spec.vocab;
    let mut divergence = Divergence::default();
    let (mut likelihood, mut base_likelihood) = (Likelihood::default(), Likelihood::default());
    let bar = CountBar::new("windows", windows.count() as u64);
    for window in windows.iter() {
        let want = score_window(&mut base_engine, window, vocab)?;
        let got = score_window(&mut engine, window, vocab)?;
        let rows = want.chunks_exact(vocab).zip(got.chunks_exact(vocab));
        for ((want, got), &next) in rows.zip(&window[1..]) {
            divergence.add(want, got);
            base_likelihood.add(log_softmax(want)[next as usize]);
            likelihood.add(log_softmax(got)[next as usize]);
        }
        bar.step(1);
    }
    bar.done();
    if let Some(path) = &args.svg {
        let title = format!("{} against {}", model.name(), base.name());
        std::fs::write(path, svg_curve(&title, &divergence.sorted(), divergence.mean()))
            .with_context(|| format!("cannot write the picture to {}", path.display()))?;
    }
    if args.text.json {
        let mut report = divergence.to_json();
        report["model"] = json!(model.name());
        report["base"] = json!(base.name());
        report["kv_type"] = json!(engine.config().kv_types.to_string());
        report["state_type"] = json!(engine.config().state_elem.name());
        report["perplexity"] = likelihood.to_json();
        report["base_perplexity"] = base_likelihood.to_json();
        put_json(&report)?;
        return Ok(());
    }
    let mut text = format!(
        "KL divergence of {} with keys and values {} and states {} from {} in f32, over {} tokens\n",
        model.name(),
        engine.config().kv_types,
        engine.config().state_elem.name(),
        base.name(),
        windows.predicted()
    );
    for (name, value) in divergence.summary() {
        text += &format!("  {name:8} {:>10} nats\n", nats(value));
    }
    text += &format!("  same most likely token {:.2}%\n", divergence.agreement() * 100.0);
    text += &format!(
        "  perplexity {:.4}, of the base {:.4}\n",
        likelihood.perplexity().0,
        base_likelihood.perplexity().0
    );
    put(&text)?;
    Ok(())
}

/// A divergence for people: plain where that shows something, else with its power of ten.
fn nats(value: f64) -> String {
    if value >= 1e-4 { format!("{value:.6}") } else { format!("{value:.2e}") }
}

/// Distributions can only be compared over one vocabulary, and only where both read the same tokens.
fn check_same_tokens(model: &Model, base: &Model, args: &TextArgs) -> Result<()> {
    if model.spec.vocab != base.spec.vocab {
        bail!(
            "{} has {} tokens and {} has {}; compare models with one tokenizer",
            model.name(),
            model.spec.vocab,
            base.name(),
            base.spec.vocab
        );
    }
    let (ours, theirs) = (read_windows(args, model)?, read_windows(args, base)?);
    if !ours.iter().eq(theirs.iter()) {
        bail!(
            "{} and {} cut the text into different tokens; compare models with one tokenizer",
            model.name(),
            base.name()
        );
    }
    Ok(())
}
