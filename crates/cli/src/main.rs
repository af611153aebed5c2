//! The `mambo` program: parses the command line, runs one command, turns errors into one sentence.

mod amounts;
mod analysis;
mod args;
mod bandwidth;
mod builtin;
mod byte_size;
mod commands;
mod comparison;
mod config_file;
mod curve;
mod environment;
mod gpus;
mod hints;
mod hub;
mod interrupt;
mod lines;
mod log;
mod machine;
mod model_report;
mod open;
mod partner;
mod progress;
mod remote;
mod reply;
mod small_file;
mod terminal;
mod text_file;
mod workload;

use std::process::ExitCode;

use args::{Cli, Command};
use hints::one_sentence;
use terminal::put_note;

fn main() -> ExitCode {
    let result = config_file::command_line().and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closed the pipe has had enough; that is not an error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            put_note(format_args!("mambo: {}", one_sentence(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Fit(args) => commands::fit::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Synth(args) => commands::synth::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Rm(args) => commands::rm::run(&args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
