//! `mambo logits`: the logits of every position, as a safetensors file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use mambo_checkpoint::{SafetensorsTensor, SafetensorsWriter};
use mambo_engine::{ScoreOptions, ScoredRows};
use mambo_kernel::ReferenceBackend;
use mambo_runtime::quality::check_logits;
use mambo_runtime::{LoadOptions, Model};
use mambo_tensor::Shape;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use crate::args::LogitsArgs;
use crate::hints::{about_room, about_tokens, with_hint};
use crate::interrupt;
use crate::open;
use crate::progress::CountBar;
use crate::terminal::{put_json, put_note};

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let ids = match &args.ids_file {
        Some(path) => read_ids(path)?,
        None => args.ids.clone(),
    };
    let model = open::model(args.model.model.as_deref())?;
    let vocab = model.spec.vocab;
    let options = LoadOptions {
        sequences: args.beside.saturating_add(1),
        mtp: true,
        at_least_tokens: ids.len(),
        ..args.model.load_options()
    };
    // The last position has no next token to feed the MTP head with.
    let mtp_rows = if model.spec.mtp.is_some() { ids.len().saturating_sub(1) } else { 0 };
    let mut tensors = vec![SafetensorsTensor::f32("logits", Shape::new(&[ids.len(), vocab])?)];
    if model.spec.mtp.is_some() {
        tensors.push(SafetensorsTensor::f32("mtp_logits", Shape::new(&[mtp_rows, vocab])?));
    }
    // Rows are written as they come: all of them together may be larger than memory.
    let mut file = SafetensorsWriter::create(&args.output, &tensors)?;
    interrupt::remove_on_ctrl_c(file.partial())?;
    let loaded = match args.reference {
        true => open::with_bar(|bar| model.load(Box::new(ReferenceBackend::new()), &options, bar))
            .map_err(Into::into),
        false => open::engine(&model, args.model.place, &options),
    };
    let mut engine = with_hint(loaded, about_room, || room_flags(args))?;
    let options = ScoreOptions { chunk: args.model.step_tokens(), companions: args.beside, outputs: &[] };
    let bar = CountBar::new("positions", ids.len() as u64);
    let mut written = Ok(());
    let scored = engine.score(&ids, options, &mut |rows| {
        if written.is_ok() {
            written = write_rows(&mut file, &model, &rows);
        }
        bar.step(rows.logits.len() / vocab);
    });
    bar.done();
    with_hint(scored, about_tokens, || Some(ids_flag(args)))?;
    written?;
    file.finish()?;
    if args.json {
        put_json(
            &json!({"output": args.output, "vocab": vocab, "logits": ids.len(), "mtp_logits": mtp_rows}),
        )?;
    } else {
        put_note(format_args!("wrote logits of {} positions to {}", ids.len(), args.output.display()));
    }
    Ok(())
}

/// The flags that ask for more memory than the text needs by itself.
fn room_flags(args: &LogitsArgs) -> Option<String> {
    let beside = (args.beside > 0).then(|| format!("--beside {}", args.beside))?;
    let context = args.model.context.map(|context| format!(" or --context {context}"));
    Some(format!("lower {beside}{}", context.unwrap_or_default()))
}

/// Where the ids come from.
fn ids_flag(args: &LogitsArgs) -> String {
    let flag = if args.ids_file.is_some() { "--ids-file" } else { "--ids" };
    format!("{flag} gives the tokens")
}

/// Writes the rows of a step, if they are numbers.
fn write_rows(file: &mut SafetensorsWriter, model: &Model, rows: &ScoredRows) -> Result<()> {
    check_logits(model, rows.first, rows.logits)?;
    check_logits(model, rows.first, rows.mtp_logits)?;
    file.add(0, rows.logits)?;
    if !rows.mtp_logits.is_empty() {
        file.add(1, rows.mtp_logits)?;
    }
    Ok(())
}

/// Token ids from text, or from `input_ids` of a safetensors file.
fn read_ids(path: &Path) -> Result<Vec<u32>> {
    if path.extension().is_some_and(|e| e == "safetensors") {
        return read_tensor_ids(path);
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read token ids from {}", path.display()))?;
    let words =
        text.split(|c: char| c.is_whitespace() || c == ',' || c == '[' || c == ']').filter(|w| !w.is_empty());
    words
        .map(|w| w.parse().with_context(|| format!("`{w}` in {} is not a token id", path.display())))
        .collect()
}

fn read_tensor_ids(path: &Path) -> Result<Vec<u32>> {
    // Not opened as a model: such a file stands alone, without config.json.
    let bytes =
        std::fs::read(path).with_context(|| format!("cannot read token ids from {}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes)
        .with_context(|| format!("{} is no safetensors file", path.display()))?;
    let Ok(tensor) = file.tensor("input_ids") else {
        bail!("{} holds no tensor `input_ids`", path.display());
    };
    let ids: Vec<i64> = match tensor.dtype() {
        Dtype::I64 => {
            let (words, _) = tensor.data().as_chunks();
            words.iter().map(|&b| i64::from_le_bytes(b)).collect()
        }
        Dtype::I32 => {
            let (words, _) = tensor.data().as_chunks();
            words.iter().map(|&b| i32::from_le_bytes(b).into()).collect()
        }
        other => bail!("`input_ids` in {} is {other:?}; it must be I64 or I32", path.display()),
    };
    ids.into_iter()
        .map(|id| u32::try_from(id).with_context(|| format!("{id} in {} is not a token id", path.display())))
        .collect()
}
