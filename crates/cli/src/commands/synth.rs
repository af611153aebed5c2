//! `mambo synth`: a GGUF file with random weights in a real model's shape.

use anyhow::Result;
use clap::Args;

use super::quantize::report;
use crate::args::OutputArgs;
use crate::export::{self, Container, Output, Recipe};
use crate::interrupt::Interrupt;
use crate::synth::Synth;

/// `mambo synth`
#[derive(Args)]
pub struct SynthArgs {
    /// The model to have the shape of, such as nano-30b; `tiny` is the built-in model's
    pub preset: String,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Type of every matrix, or a mix, as `quantize --type` takes them
    #[arg(long, value_name = "TYPE", default_value = "q4_0")]
    pub quant: String,
    /// Seed of the weights; the same seed gives the same file
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
}

/// Runs the command.
pub fn run(args: &SynthArgs) -> Result<()> {
    // One type makes speed easy to read; a mix is one because it was asked for.
    let recipe = Recipe::pure(&args.quant).or_else(|_| Recipe::named(&args.quant, Container::Gguf))?;
    let synth = Synth::new(&args.preset, args.seed)?;
    let layout = recipe.layout(&synth.spec, Container::Gguf)?;
    let output = Output {
        path: &args.output.path,
        force: args.output.force,
        threads: args.output.workers()?,
        what: "writing",
        interrupt: &Interrupt::install()?,
    };
    let bytes = export::write_gguf(output, &synth.metadata(&recipe)?, &layout, &synth)?;
    report(&args.output.path, bytes, &layout, &recipe, args.output.json)
}
