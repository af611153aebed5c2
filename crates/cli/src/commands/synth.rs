//! `mambo synth`: a GGUF file with random weights in a real model's shape.

use anyhow::Result;
use clap::Args;
use mambo_convert::{Container, Output, Recipe, Synth, write_gguf};

use super::quantize::{report, writing};
use crate::args::OutputArgs;
use crate::hints::{about_types, with_hint};
use crate::interrupt::Interrupt;
use crate::open;

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
    let recipe = Recipe::pure(&args.quant).or_else(|_| Recipe::named(&args.quant, Container::Gguf));
    let quant = || Some("--quant names the type".to_owned());
    let recipe = with_hint(recipe, about_types, quant)?;
    let donor = open::model(None)?;
    let synth = Synth::new(&args.preset, args.seed, &donor)?;
    let layout = recipe.layout(&synth.spec, Container::Gguf);
    let layout = with_hint(layout, about_types, quant)?;
    let output =
        Output { path: &args.output.path, replace: args.output.force, threads: args.output.workers()? };
    let metadata = synth.metadata(&recipe)?;
    let bytes = writing("writing", &Interrupt::install()?, |progress| {
        write_gguf(output, &metadata, &layout, &synth, progress)
    })?;
    report(&args.output.path, bytes, &layout, &recipe, args.output.json)
}
