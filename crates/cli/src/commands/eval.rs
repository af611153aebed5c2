//! `mambo eval`: perplexity of a text, and divergence from a base model or from other settings.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use mambo_runtime::LoadOptions;
use mambo_runtime::quality::{self, DEFAULT_WINDOW};
use serde_json::json;

use crate::args::ModelArgs;
use crate::comparison::compare;
use crate::curve::svg_curve;
use crate::hints::{about_room, with_hint};
use crate::interrupt::Interrupt;
use crate::open;
use crate::progress::CountBar;
use crate::terminal::{put, put_json};
use crate::text_file::TextFile;

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
    /// Tokens of a window; each is scored from an empty context
    #[arg(long, value_name = "TOKENS", default_value_t = DEFAULT_WINDOW)]
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

impl TextArgs {
    fn file(&self) -> TextFile<'_> {
        TextFile { path: &self.text, window: self.window, windows: self.windows }
    }

    /// The flag that asks for more memory than usual, if it does.
    fn room_flag(&self) -> Option<String> {
        (self.window > DEFAULT_WINDOW).then(|| format!("lower --window {}", self.window))
    }
}

fn perplexity(args: &PplArgs) -> Result<()> {
    let model = open::model(args.model.model.as_deref())?;
    let windows = args.text.file().windows(&model)?;
    let options = LoadOptions { at_least_tokens: windows.length(), ..args.model.load_options() };
    let loaded = open::engine(&model, args.model.place, &options);
    let mut engine = with_hint(loaded, about_room, || args.text.room_flag())?;
    let bar = CountBar::new("windows", windows.count() as u64);
    let likelihood = quality::perplexity(&model, &mut engine, &windows, &mut |done| {
        bar.at(done);
        ControlFlow::Continue(())
    })?;
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
    let model = open::model(args.model.model.as_deref())?;
    let base = open::model(args.base.as_deref().or(args.model.model.as_deref()))?;
    let (options, place) = (args.model.load_options(), args.model.place);
    let compared = compare((&model, &base), &options, place, &args.text.file(), &Interrupt::install()?);
    let report = with_hint(compared, about_room, || args.text.room_flag())?;
    let divergence = &report.comparison.divergence;
    if let Some(path) = &args.svg {
        let title = format!("{} against {}", model.name(), base.name());
        std::fs::write(path, svg_curve(&title, &divergence.sorted(), divergence.mean()))
            .with_context(|| format!("cannot write the picture to {}", path.display()))?;
    }
    if args.text.json {
        let mut report = report.to_json();
        report["model"] = json!(model.name());
        report["base"] = json!(base.name());
        put_json(&report)?;
        return Ok(());
    }
    put(&report.text(model.name(), base.name()))?;
    Ok(())
}
