//! `mambo logits`: the logits of every position, as a safetensors file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use mambo_checkpoint::write_safetensors;
use mambo_engine::ScoreOptions;
use mambo_tensor::Shape;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use crate::args::LogitsArgs;
use crate::model::{EngineUse, Model};

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let ids = match &args.ids_file {
        Some(path) => read_ids(path)?,
        None => args.ids.clone(),
    };
    let model = Model::open(&args.model)?;
    let vocab = model.spec.vocab;
    let usage = EngineUse {
        sequences: 1 + args.beside,
        mtp: true,
        at_least_tokens: ids.len(),
        reference: args.reference,
    };
    let mut engine = model.engine(&args.model, usage)?;
    let mut logits = Vec::with_capacity(ids.len() * vocab);
    let mut mtp_logits = Vec::new();
    let options = ScoreOptions { chunk: args.model.chunk, companions: args.beside };
    engine.score(&ids, options, &mut |rows| {
        logits.extend_from_slice(rows.logits);
        mtp_logits.extend_from_slice(rows.mtp_logits);
    })?;
    let shape = |values: &[f32]| Shape::new(&[values.len() / vocab, vocab]);
    let mut tensors = vec![("logits", shape(&logits)?, logits.as_slice())];
    if model.spec.mtp.is_some() {
        tensors.push(("mtp_logits", shape(&mtp_logits)?, mtp_logits.as_slice()));
    }
    write_safetensors(&args.output, &tensors)?;
    if args.json {
        let rows = |name: &str| tensors.iter().find(|t| t.0 == name).map_or(0, |t| t.2.len() / vocab);
        println!(
            "{}",
            json!({"output": args.output, "vocab": vocab, "logits": rows("logits"), "mtp_logits": rows("mtp_logits")})
        );
    } else {
        eprintln!("wrote logits of {} positions to {}", ids.len(), args.output.display());
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
