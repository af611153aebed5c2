//! `mambo list`: the models of the hub on this machine.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use mambo_checkpoint::parse_json;
use mambo_engine::human_bytes;
use mambo_hub::{Cached, Weights};
use serde_json::{Value, json};

use crate::amounts::Columns;
use crate::hub;
use crate::terminal::{put, put_json};

/// `mambo list`
#[derive(Args)]
pub struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &ListArgs) -> Result<()> {
    let cache = hub::cache()?;
    let models = cache.list();
    if args.json {
        let rows: Vec<Value> = models.iter().map(row).collect();
        put_json(&json!({"cache": cache.root(), "models": rows}))?;
        return Ok(());
    }
    if models.is_empty() {
        put(&format!("no models in {}; `mambo pull ORG/NAME` downloads one\n", cache.root().display()))?;
        return Ok(());
    }
    let mut table = Columns::new(&["model", "type", ">size", "state"]);
    for model in &models {
        let size = human_bytes(model.bytes);
        table.row([model.reference().to_string(), stored_type(model), size, state(model)]);
    }
    put(&format!("{}\n{}", cache.root().display(), table.text()))?;
    Ok(())
}

fn row(model: &Cached) -> Value {
    json!({
        "model": model.reference().to_string(),
        "format": model.choice.as_ref().map(|choice| match choice.weights {
            Weights::Safetensors => "safetensors",
            Weights::Gguf => "gguf",
        }),
        "type": stored_type(model),
        "bytes": model.bytes,
        "complete": model.is_complete(),
        "missing": model.choice.as_ref().map(|choice| &choice.missing),
        "unfinished_bytes": model.unfinished_bytes,
        "commit": model.commit,
        "path": model.path,
    })
}

/// How the weights are stored, as far as names and the configuration tell.
fn stored_type(model: &Cached) -> String {
    match &model.choice {
        Some(choice) if choice.weights == Weights::Gguf => format!("gguf {}", choice.label),
        Some(_) => format!("safetensors {}", folder_type(&model.path)).trim_end().to_owned(),
        None => "no weights".to_owned(),
    }
}

/// The type that a folder's configuration names.
fn folder_type(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap_or_default();
    let config = parse_json(&text).unwrap_or_default();
    let quantised = config["quantization_config"]["quant_method"].as_str();
    let plain = config["torch_dtype"].as_str().or(config["dtype"].as_str());
    quantised.or(plain).unwrap_or_default().to_owned()
}

fn state(model: &Cached) -> String {
    match (&model.choice, model.unfinished_bytes) {
        (Some(choice), _) if choice.missing.is_empty() => "complete".to_owned(),
        (Some(choice), _) => format!("incomplete: {} missing", choice.missing.join(", ")),
        (None, 0) => "incomplete".to_owned(),
        (None, bytes) => format!("incomplete: {} of unfinished files", human_bytes(bytes)),
    }
}
