//! `mambo quantize`: any readable model becomes a GGUF file or a safetensors folder with the types asked for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use mambo_engine::SCORE_TOKENS;
use mambo_tensor::DType;
use serde_json::{Map, Value, json};

use crate::args::{CacheArgs, ModelArgs, OutputArgs};
use crate::calibration;
use crate::export::{self, Container, Converter, Layout, Output, Recipe, SquaredError, metadata};
use crate::interrupt::Interrupt;
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
    let (path, force) = (args.output.path.as_path(), args.output.force);
    match container {
        Container::Gguf => export::check_file(path, force)?,
        Container::Safetensors => export::folder::check(path)?,
    }
    let threads = args.output.workers()?;
    let model_args = ModelArgs {
        model: args.model.clone(),
        chunk: SCORE_TOKENS,
        threads: args.output.threads,
        ..Default::default()
    };
    let model = Model::open(&model_args)?;
    check_not_source(&model, path)?;
    // What is measured at the end is read now: hours of work must not end in a missing file.
    let whole = |path| TextCut { path, window: DEFAULT_WINDOW, windows: None };
    let (calibrate, check) = (args.calibrate.as_deref().map(whole), args.check.as_deref().map(whole));
    for text in calibrate.iter().chain(&check) {
        text.windows(&model)?;
    }
    let interrupt = Interrupt::install()?;
    let weights = model.weights()?;
    let mut layout = recipe.layout(&model.spec, container)?;
    layout.keep_kv_scales(weights.0.kv_scales(), container);
    let importance =
        calibrate.map(|text| calibration::measure(&model, &model_args, &text, &interrupt)).transpose()?;
    let output = Output { path, force, threads, what: "quantizing", interrupt: &interrupt };
    let converter = Converter::new(&weights.0, &layout, importance.as_ref(), threads)?;
    let bytes = match container {
        Container::Gguf => {
            export::write_gguf(output, &metadata::of_model(&model, &recipe)?, &layout, &converter)?
        }
        Container::Safetensors => export::folder::write(output, &model, &layout, &converter)?,
    };
    let errors = Errors::of(&layout, &converter);
    let comparison = check.map(|text| compare_with_source(&model, &model_args, path, &text, &interrupt));
    let comparison = comparison.transpose()?;
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

/// Refuses to write over what is being read.
fn check_not_source(model: &Model, path: &Path) -> Result<()> {
    let (Ok(target), Ok(source)) = (path.canonicalize(), Path::new(model.name()).canonicalize()) else {
        return Ok(());
    };
    // All files of a split model have one name but for their number.
    let whole = |path: &Path| {
        let name = path.display().to_string();
        name.find("-of-")
            .and_then(|at| name[..at].rfind('-').map(|dash| name[..dash].to_owned()))
            .unwrap_or(name)
    };
    if whole(&target) == whole(&source) {
        bail!("{} is the model that is being read; give the output another name", path.display());
    }
    Ok(())
}

/// Compares what was written with its source, whose caches are exact.
fn compare_with_source(
    model: &Model,
    args: &ModelArgs,
    written: &Path,
    text: &TextCut,
    interrupt: &Interrupt,
) -> Result<Comparison> {
    let base = ModelArgs { cache: CacheArgs::EXACT, ..args.clone() };
    let written = ModelArgs { model: Some(written.display().to_string()), ..base.clone() };
    compare((&Model::open(&written)?, &written), (model, &base), text, interrupt)
}

/// The errors of the weights, by what they are in their layer and how they are stored.
struct Errors(BTreeMap<(String, &'static str), SquaredError>);

impl Errors {
    fn of(layout: &Layout, converter: &Converter) -> Errors {
        let main = layout.tensors.iter().filter(|tensor| tensor.content.is_main());
        let stored: BTreeMap<&str, DType> =
            main.map(|tensor| (tensor.weight.as_str(), tensor.encoding())).collect();
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
