//! The log of `mambo serve`: what libraries report with `tracing`, as lines on standard error.

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;

/// How much is logged, and in what form.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Form of the lines on standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Least weight of what is logged; info has a line for each request
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
    /// Log prompts and answers too, which may hold what is private
    #[arg(long)]
    pub log_prompts: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl LogArgs {
    /// Logs from now on; the second time in a program does nothing.
    pub fn install(&self) {
        let level = match self.log_level {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        };
        // A standard error that nobody reads is no reason to stop serving.
        let lines = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .with_target(false);
        let _ = match self.log_format {
            LogFormat::Text => tracing::subscriber::set_global_default(lines.finish()),
            LogFormat::Json => {
                tracing::subscriber::set_global_default(lines.json().flatten_event(true).finish())
            }
        };
    }
}
