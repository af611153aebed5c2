//! `mambo inspect`: what is in a model's files, without loading weights; the report as JSON or as tables.

use anyhow::{Error, Result};
use clap::Args;
use mambo_engine::human_bytes;
use mambo_model::{ModelError, Nearest, nearest};
use mambo_runtime::{Described, RuntimeError};
use serde_json::{Value, json};

use crate::amounts::{Columns, grouped, short_count};
use crate::args::{CacheArgs, NameArgs};
use crate::model_report::{histogram, report, stored_type, tensor};
use crate::open;
use crate::terminal::{put, put_json};

/// `mambo inspect`
#[derive(Args)]
pub struct InspectArgs {
    /// The model.
    #[command(flatten)]
    pub model: NameArgs,
    /// How caches would be stored.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<()> {
    let (report, text) = match open::described(args.model.name()) {
        Ok(described) => {
            let report = report(&described, &args.cache, args.tensors);
            let text = text(&described, &report, args.tensors);
            (report, text)
        }
        Err(error) => foreign(args, error)?,
    };
    if args.json {
        put_json(&report)?;
    } else {
        put(&text)?;
    }
    Ok(())
}

/// Files of an architecture that mambo does not run: what they hold can be shown all the same.
fn foreign(args: &InspectArgs, error: Error) -> Result<(Value, String)> {
    let found: Option<&RuntimeError> = error.downcast_ref();
    let (Some(RuntimeError::Model(ModelError::UnknownArchitecture { architecture, .. })), Some(name)) =
        (found, args.model.name())
    else {
        return Err(error);
    };
    let files = open::files(name)?;
    let nearest = nearest(&files);
    let mut report = json!({
        "model": files.source(),
        "format": files.format().to_string(),
        "has_weights": files.tensors().next().is_some(),
        "architecture": architecture,
        "types": histogram(files.tensors().map(stored_type)),
        "nearest": nearest.as_ref().map(|near| json!({
            "family": near.family, "known_tensors": near.known, "tensors": near.tensors,
            "unknown": near.unknown, "problems": near.problems,
        })),
        "notes": [error.to_string()],
    });
    let mut text = format!(
        "{}\nformat      {}\nmodel       {architecture}, which mambo does not run\n{}note        {error}\n\n{}",
        files.source(),
        files.format(),
        nearest_text(nearest.as_ref()),
        type_table(&report),
    );
    if args.tensors {
        report["tensors"] = files.tensors().map(tensor).collect();
        text += &format!("\n{}", tensor_table(&report));
    }
    Ok((report, text))
}

/// What the files lack to be of a family that is known.
fn nearest_text(nearest: Option<&Nearest>) -> String {
    let Some(Nearest { family, known, tensors, unknown, problems }) = nearest else {
        return "nearest     no family: the tensors have names of their own\n".to_owned();
    };
    let known = if known == tensors { "all".to_owned() } else { format!("{known} of") };
    let mut text =
        format!("nearest     the family {family}, which knows the names of {known} {tensors} tensors\n");
    if let Some(unknown) = unknown {
        text += &format!("unknown     {unknown}\n");
    }
    if problems.is_empty() && unknown.is_none() {
        text += &format!(
            "            nothing is missing that can be seen; if its mathematics are those of {family}, \
             name it so in the metadata\n"
        );
    }
    text + &problems_text(problems.iter().map(String::as_str))
}

/// The first problems, and how many more there are.
fn problems_text<'p>(problems: impl Iterator<Item = &'p str>) -> String {
    const SHOWN: usize = 6;
    let problems: Vec<&str> = problems.collect();
    let mut text = String::new();
    for (index, problem) in problems.iter().take(SHOWN).enumerate() {
        text += &format!("{:<12}{problem}\n", if index == 0 { "problem" } else { "" });
    }
    match problems.len().saturating_sub(SHOWN) {
        0 => text,
        more => text + &format!("{:<12}and {more} more (`--json` lists all)\n", ""),
    }
}

fn text(described: &Described, report: &Value, tensors: bool) -> String {
    let spec = &described.spec;
    let p = spec.parameters();
    let weights = if described.has_weights() { "" } else { ", no weights" };
    let head = if spec.tied_embeddings { "tied to the embedding" } else { "its own" };
    let mut text = format!(
        "{}\nformat      {}{weights}\nmodel       {}, hidden {}, vocab {}, head {head}\nschedule    {}\n\n",
        described.name,
        report["format"].as_str().unwrap_or_default(),
        spec.architecture,
        spec.hidden,
        grouped(spec.vocab as u64),
        spec.pattern(),
    );
    text += &layer_table(report);
    text += &format!(
        "\nparameters  {} total, {} active per token, {} in the MTP head\n",
        short_count(p.total),
        short_count(p.active),
        if p.mtp == 0 { "none".to_owned() } else { short_count(p.mtp) },
    );
    text += &memory_text(&report["memory"]);
    text += &format!(
        "context     {}\n",
        spec.context.map_or("not said".to_owned(), |c| format!("{} tokens trained", grouped(c as u64)))
    );
    text += &tokenizer_text(report);
    text += &problems_text(list(&report["problems"]).filter_map(Value::as_str));
    for note in list(&report["notes"]).filter_map(Value::as_str) {
        text += &format!("note        {note}\n");
    }
    if report["types"].as_array().is_some_and(|rows| !rows.is_empty()) {
        text += &format!("\n{}", type_table(report));
    }
    if tensors {
        text += &format!("\n{}", tensor_table(report));
    }
    text
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// `heads 64, head_dim 64` and so on, without what a model has not; of several mixers one after the other.
fn sizes_text(sizes: &Value) -> String {
    if let Some(mixers) = sizes.as_array() {
        return mixers.iter().map(sizes_text).collect::<Vec<_>>().join(" + ");
    }
    let parts = sizes.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null());
    let part = |(name, v): (&String, &Value)| match v.is_object() {
        true => format!("{name} ({})", sizes_text(v)),
        false => format!("{name} {v}"),
    };
    parts.map(part).collect::<Vec<_>>().join(", ")
}

fn layer_table(report: &Value) -> String {
    let mut table = Columns::new(&[">layers", "kind", ">each", "sizes", "at"]);
    for row in list(&report["layers"]) {
        table.row([
            row["count"].to_string(),
            row["kind"].as_str().unwrap_or_default().to_owned(),
            short_count(number(&row["parameters_each"])),
            sizes_text(&row["sizes"]),
            row["at"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    for (kind, sizes) in report["mtp"].as_object().into_iter().flatten() {
        table.row(["mtp".to_owned(), kind.clone(), String::new(), sizes_text(sizes), String::new()]);
    }
    table.text()
}

fn memory_text(memory: &Value) -> String {
    let bytes = |name: &str| human_bytes(number(&memory[name]));
    let weights = if memory["weight_bytes"].is_null() { "unknown".to_owned() } else { bytes("weight_bytes") };
    let with_mtp = if memory["kv_bytes_per_token"] == memory["kv_bytes_per_token_with_mtp"] {
        String::new()
    } else {
        format!(" ({} with the MTP head)", bytes("kv_bytes_per_token_with_mtp"))
    };
    let windows = list(&memory["kv_windows"]).map(|kv| {
        format!(", {} of it in windows of {}", human_bytes(number(&kv["bytes_per_token"])), kv["window"])
    });
    format!(
        "memory      weights {weights}; kv {} per token{with_mtp} in {}{}; per sequence state {} in {} and a ring of {} positions {}\n",
        bytes("kv_bytes_per_token"),
        memory["kv_type"].as_str().unwrap_or_default(),
        windows.collect::<String>(),
        bytes("state_bytes_per_sequence"),
        memory["state_type"].as_str().unwrap_or_default(),
        memory["ring_positions"],
        bytes("ring_bytes_per_sequence"),
    )
}

fn tokenizer_text(report: &Value) -> String {
    let t = &report["tokenizer"];
    let ids: Vec<String> = list(&report["stop_tokens"]).map(Value::to_string).collect();
    let metadata_stops = format!("stop        {} (from the metadata)\n", ids.join(" "));
    if t.is_null() {
        return metadata_stops;
    }
    let template =
        if t["chat_template"] == true { "with a chat template" } else { "without a chat template" };
    if let Some(problem) = t["problem"].as_str() {
        return format!("tokenizer   none: {problem}; {template}\n{metadata_stops}");
    }
    let name = |v: &Value| match v["text"].as_str() {
        Some(text) => format!("{} `{text}`", v["id"]),
        None => "none".to_owned(),
    };
    let stops: Vec<String> = list(&t["stop"]).map(name).collect();
    let added = if t["adds_bos"] == true { " (added)" } else { "" };
    format!(
        "tokenizer   {} tokens, {} special, bos {}{added}, eos {}, {template}\nstop        {}\n",
        grouped(number(&t["tokens"])),
        t["special"],
        name(&t["bos"]),
        name(&t["eos"]),
        stops.join(", "),
    )
}

fn type_table(report: &Value) -> String {
    let mut table = Columns::new(&["type", ">tensors", ">values", ">bytes", ">bits/weight"]);
    let (mut tensors, mut values, mut bytes) = (0, 0, 0);
    let mut add = |name: &str, row: (u64, u64, u64)| {
        let bits = row.2 as f64 * 8.0 / (row.1 as f64).max(1.0);
        table.row([
            name.to_owned(),
            row.0.to_string(),
            short_count(row.1),
            human_bytes(row.2),
            format!("{bits:.2}"),
        ]);
    };
    for row in list(&report["types"]) {
        let counts = (number(&row["tensors"]), number(&row["values"]), number(&row["bytes"]));
        add(row["type"].as_str().unwrap_or_default(), counts);
        (tensors, values, bytes) = (tensors + counts.0, values + counts.1, bytes + counts.2);
    }
    add("all", (tensors, values, bytes));
    table.text()
}

fn tensor_table(report: &Value) -> String {
    let mut table = Columns::new(&["tensor", "type", "shape", ">bytes"]);
    for row in list(&report["tensors"]) {
        table.row([
            row["name"].as_str().unwrap_or_default().to_owned(),
            row["type"].as_str().unwrap_or_default().to_owned(),
            row["shape"].to_string().replace(',', ", "),
            grouped(number(&row["bytes"])),
        ]);
    }
    table.text()
}
