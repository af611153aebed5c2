//! `mambo quantize`: any readable model becomes a GGUF file or a safetensors folder with the types asked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use mambo_engine::SCORE_TOKENS;
use mambo_tensor::DType;
use serde_json::{Map, Value, json};

use crate::args::{ModelArgs, OutputArgs};
use crate::calibration;
use crate::export::{self, Container, Converter, Layout, Output, Recipe, SquaredError, metadata};
use crate::model::Model;
use crate::quality::{Comparison, DEFAULT_WINDOW, TextCut, compare};
use crate::terminal::{put, put_json};

/// `mambo quantize`
#[derive(Args)]
pub struct QuantizeArgs {
    /// A folder, a .gguf file or a hub id already on this machine; the built-in model if left out
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Type of most weights: q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, nvfp4, q3_k,
    /// q2_k, bf16, f16, f32, in folders also f8_e4m3; or a mix: q4_mix (the default of .gguf files), nvfp4_mix
    /// (that of folders), builtin
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Store every matrix in that type; otherwise those that err most get more bits
    #[arg(long, requires = "kind")]
    pub pure: bool,
    /// Another type for some weights, such as experts_down=q6_k, layers.1*=q8_0 or mtp=q4_0 (repeatable)
    #[arg(long, value_name = "WEIGHT=TYPE")]
    pub tensor: Vec<String>,
    /// Run the model over a text first and favour the inputs that matter there; the model must fit in memory
    #[arg(long, value_name = "FILE")]
    pub calibrate: Option<PathBuf>,
    /// Measure the result's divergence from its source on a text; both must fit in memory
    #[arg(long, value_name = "FILE")]
    pub check: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &QuantizeArgs) -> Result<()> {
    let container = Container::of(&args.output.path);
    let kind = args.kind.as_deref().unwrap_or(container.default_mix());
    let mut recipe = if args.pure { Recipe::pure(kind)? } else { Recipe::named(kind, container)? };
    for rule in &args.tensor {
        recipe = recipe.with_rule(rule)?;
    }
    export::check_output(&args.output.path, args.output.force)?;
    let model_args = ModelArgs {
        model: args.model.clone(),
        chunk: SCORE_TOKENS,
        threads: args.output.threads,
        ..Default::default()
    };
    let model = Model::open(&model_args)?;
    let weights = model.weights()?;
    let layout = recipe.layout(&model.spec, container)?;
    let importance =
        args.calibrate.as_deref().map(|text| calibration::measure(&model, &model_args, text)).transpose()?;
    let threads = args.output.threads.unwrap_or_else(export::default_threads);
    let output = Output { path: &args.output.path, force: args.output.force, threads, what: "quantizing" };
    let converter = Converter::new(&weights.0, &layout, importance.as_ref(), threads)?;
    let bytes = match container {
        Container::Gguf => {
            export::write_gguf(output, &metadata::of_model(&model, &recipe)?, &layout, &converter)?
        }
        Container::Safetensors => export::folder::write(output, &model, &layout, &converter)?,
    };
    let errors = Errors::of(&layout, &converter);
    let comparison = args.check.as_deref().map(|text| check(&model, &model_args, args, text)).transpose()?;
    if args.output.json {
        let mut summary = summary(&args.output.path, bytes, &layout, &recipe);
        summary["errors"] = errors.to_json();
        summary["check"] = json!(comparison.map(|c| c.to_json()));
        return Ok(put_json(&summary)?);
    }
    errors.print();
    report(&args.output.path, bytes, &layout, &recipe, false)?;
    if let Some(comparison) = comparison {
        put(&comparison.text(&args.output.path.display().to_string(), model.name()))?;
    }
    Ok(())
}

/// Compares the file that was written with its source.
fn check(model: &Model, model_args: &ModelArgs, args: &QuantizeArgs, text: &Path) -> Result<Comparison> {
    let written = ModelArgs { model: Some(args.output.path.display().to_string()), ..model_args.clone() };
    let text = TextCut { path: text, window: DEFAULT_WINDOW, windows: None };
    compare((&Model::open(&written)?, &written), (model, model_args), &text)
}

/// The errors of the weights, by what they are in their layer and how they are stored.
struct Errors(BTreeMap<(String, &'static str), SquaredError>);

impl Errors {
    fn of(layout: &Layout, converter: &Converter) -> Errors {
        let stored: BTreeMap<&str, DType> =
            layout.tensors.iter().map(|tensor| (tensor.weight.as_str(), tensor.encoding())).collect();
        Errors(converter.errors(|weight| {
            let role = weight.rsplit('.').next().unwrap_or(weight).to_owned();
            (role, stored.get(weight).map_or("", |dtype| dtype.name()))
        }))
    }

    /// Those that lost something.
    fn lossy(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let rows = self.0.iter().map(|((role, dtype), error)| (role.as_str(), *dtype, error.relative()));
        rows.filter(|(_, _, error)| *error > 0.0)
    }

    fn print(&self) {
        if self.lossy().next().is_some() {
            eprintln!("  weight        type    error");
        }
        for (role, dtype, error) in self.lossy() {
            eprintln!("  {role:<13} {dtype:<7} {:.2}%", error * 100.0);
        }
    }

    fn to_json(&self) -> Value {
        self.lossy()
            .map(|(role, dtype, error)| json!({"weight": role, "type": dtype, "relative_error": error}))
            .collect()
    }
}

/// Says what was written, in words or as JSON.
pub fn report(path: &Path, bytes: u64, layout: &Layout, recipe: &Recipe, as_json: bool) -> Result<()> {
    if as_json {
        return Ok(put_json(&summary(path, bytes, layout, recipe))?);
    }
    for (dtype, tensors, bytes) in layout.types() {
        eprintln!("  {:<6} {tensors:>5} tensors {:>9.1} MB", dtype.name(), bytes as f64 / 1e6);
    }
    for note in &layout.notes {
        eprintln!("  note: {note}");
    }
    let bits = layout.bits_per_weight();
    eprintln!("wrote {}: {:.1} MB, {bits:.2} bits per weight", path.display(), bytes as f64 / 1e6);
    Ok(())
}

fn summary(path: &Path, bytes: u64, layout: &Layout, recipe: &Recipe) -> Value {
    let types: Map<String, Value> = layout
        .types()
        .iter()
        .map(|(dtype, tensors, bytes)| (dtype.to_string(), json!({"tensors": tensors, "bytes": bytes})))
        .collect();
    json!({
        "output": path, "bytes": bytes, "type": recipe.name, "parameters": layout.elems(),
        "bits_per_weight": layout.bits_per_weight(), "types": types, "notes": layout.notes,
    })
}
