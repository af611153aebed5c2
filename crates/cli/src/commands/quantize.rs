//! `mambo quantize`: any readable model becomes a GGUF file with the types asked for.

use std::ops::Range;

use anyhow::{Context, Result};
use clap::Args;
use mambo_kernel::WeightSource;
use mambo_model::{BoundWeight, WeightTable};
use mambo_tensor::{decode_row, encode_row};
use serde_json::json;

use crate::args::{ModelArgs, OutputArgs};
use crate::export::{self, Layout, Output, Planned, Recipe, Source, metadata};
use crate::model::Model;
use crate::terminal::put_json;

/// `mambo quantize`
#[derive(Args)]
pub struct QuantizeArgs {
    /// A folder, a .gguf file or a hub id already on this machine; the built-in model if left out
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Type of the weights: q4_0, q4_k, q5_0, q6_k, q8_0, bf16, f16, f32, or the mix of the built-in model,
    /// `builtin`
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    /// Another type for some weights, such as experts_down=q6_k, layers.3=q8_0 or mtp=q4_0 (repeatable)
    #[arg(long, value_name = "WEIGHT=TYPE")]
    pub tensor: Vec<String>,
}

/// Runs the command.
pub fn run(args: &QuantizeArgs) -> Result<()> {
    let mut recipe = Recipe::named(&args.kind)?;
    for rule in &args.tensor {
        recipe = recipe.with_rule(rule)?;
    }
    export::check_output(&args.output.path, args.output.force)?;
    let model = Model::open(&ModelArgs { model: args.model.clone(), ..Default::default() })?;
    let weights = model.weights()?;
    let layout = recipe.layout(&model.spec)?;
    let metadata = metadata::of_model(&model, &recipe)?;
    let output = Output {
        path: &args.output.path,
        force: args.output.force,
        threads: args.output.threads.unwrap_or_else(export::default_threads),
        what: "quantizing",
    };
    let bytes = export::write(output, &metadata, &layout, &Stored(&weights.0))?;
    report(&args.output.path, bytes, &layout, &recipe, args.output.json)
}

/// Says what was written, in words or as JSON.
pub fn report(
    path: &std::path::Path,
    bytes: u64,
    layout: &Layout,
    recipe: &Recipe,
    as_json: bool,
) -> Result<()> {
    let elems: usize = layout.tensors.iter().map(Planned::elems).sum();
    let bits = layout.bytes() as f64 * 8.0 / elems as f64;
    if as_json {
        let types: serde_json::Map<String, serde_json::Value> = layout
            .types()
            .iter()
            .map(|(dtype, tensors, bytes)| (dtype.to_string(), json!({"tensors": tensors, "bytes": bytes})))
            .collect();
        let summary = json!({
            "output": path, "bytes": bytes, "type": recipe.name, "parameters": elems,
            "bits_per_weight": bits, "types": types, "notes": layout.notes,
        });
        put_json(&summary)?;
        return Ok(());
    }
    for (dtype, tensors, bytes) in layout.types() {
        eprintln!("  {:<5} {tensors:>5} tensors {:>9.1} MB", dtype.name(), bytes as f64 / 1e6);
    }
    for note in &layout.notes {
        eprintln!("  note: {note}");
    }
    eprintln!("wrote {}: {:.1} MB, {bits:.2} bits per weight", path.display(), bytes as f64 / 1e6);
    Ok(())
}

/// The weights of an open model.
struct Stored<'a, 'c>(&'a WeightTable<'c>);

impl Source for Stored<'_, '_> {
    fn rows(&self, tensor: &Planned, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let weight = self.0.get(&tensor.weight).context("the model has no such weight")?;
        let columns = tensor.row_elems();
        let per_part = tensor.row_count() / weight.part_count();
        let mut values = vec![0.0; columns];
        let mut out = out.chunks_exact_mut(tensor.row_bytes());
        let mut start = rows.start;
        while start < rows.end {
            let part = start / per_part;
            let end = rows.end.min((part + 1) * per_part);
            let bytes = weight.part(part);
            weight.check_read_parts()?;
            let stored = bytes.len() / per_part;
            for (row, out) in (start..end).zip(&mut out) {
                let row = row - part * per_part;
                let scale = weight.row_scale(part, row);
                convert(weight, scale, &bytes[row * stored..][..stored], &mut values, tensor, out)?;
            }
            // Rows come in order, so nobody asks for this part again, or only for what a neighbour still reads.
            if end == (part + 1) * per_part {
                weight.release(part);
            }
            start = end;
        }
        Ok(())
    }
}

/// One row of a part in another type; the same type is copied.
fn convert(
    weight: &BoundWeight,
    scale: f32,
    stored: &[u8],
    values: &mut [f32],
    tensor: &Planned,
    out: &mut [u8],
) -> Result<()> {
    if weight.dtype() == tensor.dtype && scale == 1.0 {
        out.copy_from_slice(stored);
        return Ok(());
    }
    decode_row(weight.dtype(), stored, values)?;
    if scale != 1.0 {
        values.iter_mut().for_each(|value| *value *= scale);
    }
    encode_row(tensor.dtype, values, out)?;
    Ok(())
}
