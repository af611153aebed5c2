//! `mambo rm`: takes a model of the hub off this machine.

use std::io::IsTerminal;

use anyhow::{Result, bail};
use clap::Args;
use mambo_engine::human_bytes;
use mambo_hub::Reference;
use serde_json::json;

use crate::hub;
use crate::terminal::{put, put_json};

/// `mambo rm`
#[derive(Args)]
pub struct RmArgs {
    /// The model: ORG/NAME for all that is here of a repository, with :QUANT or :FILE for one of its models, with
    /// @REVISION for one revision
    #[arg(value_name = "ORG/NAME[@REVISION][:QUANT]")]
    pub model: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &RmArgs) -> Result<()> {
    let reference: Reference = args.model.parse()?;
    let removal = hub::cache()?.removal(&reference)?;
    let bytes = removal.bytes;
    if !args.yes {
        if !std::io::stdin().is_terminal() {
            bail!(
                "{reference} ({}) was not removed, because nobody can be asked; add --yes",
                human_bytes(bytes)
            );
        }
        if !hub::confirmed(&format!("remove {reference} ({})?", human_bytes(bytes)))? {
            bail!("{reference} was not removed");
        }
    }
    removal.carry_out()?;
    if args.json {
        put_json(&json!({"model": reference.to_string(), "freed_bytes": bytes}))?;
    } else {
        put(&format!("{reference} removed, {} freed\n", human_bytes(bytes)))?;
    }
    Ok(())
}
