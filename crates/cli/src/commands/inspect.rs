//! `mambo inspect`: what is in a model's files, without loading weights.

use anyhow::{Error, Result};
use clap::Args;
use mambo_checkpoint::{Checkpoint, TensorInfo};
use mambo_engine::human_bytes;
use mambo_kernel::{CacheLayout, Rollback, SSM_CHUNK, SlotLayout, SsmDims, WeightSource};
use mambo_model::{Mixer, ModelError, ModelSpec, MoeSpec, Place};
use mambo_runtime::{Described, Model, RuntimeError};
use mambo_tensor::DType;
use mambo_text::Tokenizer;
use serde_json::{Value, json};

use crate::amounts::{Columns, grouped, ranges, short_count};
use crate::args::{CacheArgs, NameArgs};
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
    let mut report = json!({
        "model": files.source(),
        "format": files.format().to_string(),
        "has_weights": files.tensors().next().is_some(),
        "architecture": architecture,
        "types": histogram(files.tensors().map(stored_type)),
        "notes": [error.to_string()],
    });
    let mut text = format!(
        "{}\nformat      {}\nmodel       {architecture}, which mambo does not run\nnote        {error}\n\n{}",
        files.source(),
        files.format(),
        type_table(&report),
    );
    if args.tensors {
        report["tensors"] = files.tensors().map(tensor).collect();
        text += &format!("\n{}", tensor_table(&report));
    }
    Ok((report, text))
}

/// Everything, as data; the text is made from it.
fn report(described: &Described, cache: &CacheArgs, tensors: bool) -> Value {
    let spec = &described.spec;
    let p = spec.parameters();
    let checkpoint = described.model.as_ref().map(|m| &m.checkpoint);
    let mut report = json!({
        "model": described.name,
        "format": checkpoint.map_or("preset".to_owned(), |c| c.format().to_string()),
        "has_weights": described.has_weights(),
        "architecture": spec.architecture,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "tied_embeddings": spec.tied_embeddings,
        "schedule": spec.pattern(),
        "layers": layers(spec),
        "mtp": spec.mtp.map(|m| json!({
            "attention": mixer_sizes(&Mixer::Attention(m.attention)),
            "moe": mixer_sizes(&Mixer::Moe(m.moe)),
        })),
        "parameters": {"total": p.total, "trunk": p.trunk, "mtp": p.mtp, "active": p.active},
        "types": described.model.as_ref().map(types),
        "memory": memory(described, cache),
        "context": spec.context,
        "stop_tokens": spec.stop_tokens,
        "tokenizer": described.model.as_ref().map(tokenizer),
        "notes": notes(described),
    });
    if tensors {
        report["tensors"] = checkpoint.map(|c| c.tensors().map(tensor).collect()).unwrap_or_default();
    }
    report
}

/// What the metadata and the weights give reason to say.
fn notes(described: &Described) -> Vec<String> {
    // Files whose weights mambo cannot bind are shown all the same.
    let weights = described.model.as_ref().filter(|_| described.has_weights()).and_then(|m| m.weights().ok());
    let held = weights.map(|weights| weights.notes()).unwrap_or_default();
    described.spec.notes.iter().cloned().chain(held).collect()
}

fn tensor(t: &TensorInfo) -> Value {
    json!({"name": t.name, "type": t.dtype.name(), "shape": t.shape.dims(), "bytes": t.byte_len()})
}

/// Equal layers together, in order of first appearance.
fn layers(spec: &ModelSpec) -> Vec<Value> {
    let mut kinds: Vec<(Mixer, Vec<usize>)> = Vec::new();
    for (index, layer) in spec.layers.iter().enumerate() {
        match kinds.iter_mut().find(|(mixer, _)| *mixer == layer.mixer) {
            Some((_, indices)) => indices.push(index),
            None => kinds.push((layer.mixer, vec![index])),
        }
    }
    let weights = spec.weights();
    let parameters = |layer: usize| -> u64 {
        let own = weights.iter().filter(|w| w.place == Place::Layer(layer));
        own.map(|w| w.shape.iter().product::<usize>() as u64).sum()
    };
    let row = |(mixer, indices): (Mixer, Vec<usize>)| {
        json!({
            "kind": mixer.name(),
            "count": indices.len(),
            "at": ranges(&indices),
            "parameters_each": parameters(indices[0]),
            "sizes": mixer_sizes(&mixer),
        })
    };
    kinds.into_iter().map(row).collect()
}

fn mixer_sizes(mixer: &Mixer) -> Value {
    match mixer {
        Mixer::Mamba2(d) => json!({
            "heads": d.heads, "head_dim": d.head_dim, "state": d.state, "groups": d.groups, "taps": d.taps,
        }),
        Mixer::Attention(a) => json!({"heads": a.q_heads, "head_dim": a.head_dim, "kv_heads": a.kv_heads}),
        Mixer::Mlp { width } => json!({"width": width}),
        Mixer::Moe(MoeSpec { route, expert_width, latent, shared_width }) => json!({
            "experts": route.experts, "top_k": route.top_k, "width": expert_width, "latent": latent,
            "shared": shared_width, "groups": route.groups, "scale": route.scale,
        }),
    }
}

/// The element types of the weights, most bytes first. What a quantised weight is made of (codes, scales)
/// counts as its type; only where weights cannot be bound are the tensors counted as they lie in the files.
fn types(model: &Model) -> Value {
    match model.weights() {
        Ok(weights) => histogram(weights.iter().map(|w| {
            (w.dtype(), w.tensor_names().len(), w.shape().iter().product::<usize>() as u64, w.stored_bytes())
        })),
        Err(_) => histogram(model.checkpoint.tensors().map(stored_type)),
    }
}

/// Type, tensors, values and bytes.
type TypeRow = (DType, usize, u64, u64);

fn stored_type(t: &TensorInfo) -> TypeRow {
    (t.dtype, 1, t.shape.elems() as u64, t.byte_len())
}

/// One row for each type, most bytes first.
fn histogram(counts: impl Iterator<Item = TypeRow>) -> Value {
    let mut rows: Vec<TypeRow> = Vec::new();
    for (dtype, tensors, values, bytes) in counts {
        match rows.iter_mut().find(|row| row.0 == dtype) {
            Some(row) => (row.1, row.2, row.3) = (row.1 + tensors, row.2 + values, row.3 + bytes),
            None => rows.push((dtype, tensors, values, bytes)),
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.3));
    let row = |(dtype, tensors, values, bytes): TypeRow| {
        let bits = bytes as f64 * 8.0 / (values as f64).max(1.0);
        json!({"type": dtype.name(), "tensors": tensors, "values": values, "bytes": bytes, "bits_per_weight": bits})
    };
    rows.into_iter().map(row).collect()
}

/// What running it takes, beside the arena.
fn memory(described: &Described, cache: &CacheArgs) -> Value {
    let spec = &described.spec;
    let checkpoint = described.model.as_ref().map(|m| &m.checkpoint);
    // Files whose weights mambo cannot bind are shown all the same.
    let embedding = described.types().ok().and_then(|types| types.dtype("embed"));
    let options = cache.load_options();
    let (kv_types, state_elem) = (options.kv_types_for(embedding), options.state_elem);
    let layers = spec.cache_layers();
    let trunk = spec.trunk_kv_layers();
    let layout = |kv_layers: Vec<_>| CacheLayout {
        kv_layers,
        kv_types,
        state_layers: layers.state_layers.clone(),
        state_elem,
        ..Default::default()
    };
    // The rings of the current chunk come last in a slot's part of a layer.
    let ring = |d: &SsmDims| {
        let slot = SlotLayout::new(*d, Rollback::None, state_elem, 0);
        4 * (slot.len - slot.ring_x)
    };
    let ring: usize = layers.state_layers.iter().map(ring).sum();
    let slot = layout(trunk.clone()).slot_bytes();
    json!({
        "weight_bytes": checkpoint.filter(|c| c.tensors().next().is_some()).map(Checkpoint::total_bytes),
        "kv_bytes_per_token": layout(trunk).kv_bytes_per_token(),
        "kv_bytes_per_token_with_mtp": layout(layers.kv_layers.clone()).kv_bytes_per_token(),
        "kv_type": kv_types.to_string(),
        "state_type": state_elem.name(),
        "state_bytes_per_sequence": slot - ring,
        "ring_bytes_per_sequence": ring,
        "ring_positions": SSM_CHUNK,
    })
}

fn tokenizer(model: &Model) -> Value {
    let has_template = model.chat_template().is_ok_and(|template| template.is_some());
    let text = model.text();
    match text.as_ref().map(|text| (text.tokenizer(), text.stop_tokens())) {
        Ok((t, stops)) => json!({
            "tokens": t.vocab_size(),
            "special": (0..t.vocab_size() as u32).filter(|id| t.is_special(*id)).count(),
            "bos": special(t, t.bos()),
            "eos": special(t, t.eos()),
            "adds_bos": t.adds_bos(),
            "stop": stops.iter().map(|id| special(t, Some(*id))).collect::<Vec<_>>(),
            "chat_template": has_template,
        }),
        Err(error) => json!({"problem": error.to_string(), "chat_template": has_template}),
    }
}

fn special(tokenizer: &Tokenizer, id: Option<u32>) -> Option<Value> {
    id.map(|id| json!({"id": id, "text": tokenizer.decode(&[id], false)}))
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

/// `heads 64, head_dim 64` and so on, without what a model has not.
fn sizes_text(sizes: &Value) -> String {
    let parts = sizes.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null());
    parts.map(|(name, v)| format!("{name} {v}")).collect::<Vec<_>>().join(", ")
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
    format!(
        "memory      weights {weights}; kv {} per token{with_mtp} in {}; per sequence state {} in {} and a ring of {} positions {}\n",
        bytes("kv_bytes_per_token"),
        memory["kv_type"].as_str().unwrap_or_default(),
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
