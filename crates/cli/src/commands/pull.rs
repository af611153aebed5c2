//! `mambo pull`: a model from the hub into the local cache.

use anyhow::Result;
use clap::Args;
use mambo_engine::human_bytes;
use mambo_hub::{HubError, Reference};
use serde_json::json;

use crate::amounts::counted;
use crate::hub;
use crate::interrupt::Interrupt;
use crate::terminal::{put, put_json, put_note};

/// `mambo pull`
#[derive(Args)]
pub struct PullArgs {
    /// The model: ORG/NAME, with :QUANT or :FILE for one of several GGUF files, with @REVISION for another branch, tag
    /// or commit
    #[arg(value_name = "ORG/NAME[@REVISION][:QUANT]")]
    pub model: String,
    /// Download it even if mambo cannot run it
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &PullArgs) -> Result<()> {
    let reference: Reference = args.model.parse()?;
    let hub = hub::hub()?;
    let plan = hub::planned(&hub, &reference, args.force)?;
    let (missing, files) = (plan.missing_bytes(), counted(plan.files.len(), "file"));
    if missing > 0 {
        let kept = plan.files.iter().map(|file| file.have).sum::<u64>();
        let kept = if kept > 0 { format!(", {} are here already", human_bytes(kept)) } else { String::new() };
        put_note(format_args!("{reference}: {files}, {} to download{kept}", human_bytes(missing)));
    }
    let interrupt = Interrupt::install()?;
    let path = hub::with_bar(&hub, &plan, || interrupt.flow()).map_err(|error| match error {
        HubError::Stopped { what } => {
            anyhow::anyhow!("{what}: stopped by Ctrl-C; what came is kept, `mambo pull {reference}` goes on")
        }
        error => error.into(),
    })?;
    if args.json {
        let files: Vec<_> =
            plan.files.iter().map(|file| json!({"path": file.path, "bytes": file.size})).collect();
        put_json(&json!({
            "model": reference.to_string(),
            "choice": plan.choice.label,
            "revision": plan.revision,
            "commit": plan.commit,
            "path": path,
            "bytes": plan.bytes(),
            "downloaded_bytes": missing,
            "files": files,
        }))?;
        return Ok(());
    }
    let done = if missing > 0 { "downloaded" } else { "complete already" };
    put(&format!("{reference} {done}: {files}, {}\n{}\n", human_bytes(plan.bytes()), path.display()))?;
    Ok(())
}
