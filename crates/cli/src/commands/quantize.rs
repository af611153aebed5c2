//! `mambo quantize`: any readable model becomes a GGUF file or a safetensors folder with the types asked for.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use mambo_convert::{
    Calibration, Container, ConvertError, Importance, Layout, Output, Progress, Recipe, SquaredError, convert,
};
use mambo_engine::SCORE_TOKENS;
use mambo_runtime::quality::DEFAULT_WINDOW;
use mambo_runtime::{LoadOptions, Model};
use serde_json::{Map, Value, json};

use crate::args::{BackendArgs, OutputArgs};
use crate::comparison::{Report, compare};
use crate::hints::{about_room, about_rules, about_types, with_hint};
use crate::interrupt::Interrupt;
use crate::open;
use crate::progress::{ByteBar, CountBar};
use crate::terminal::{put, put_json, put_note};
use crate::text_file::TextFile;

/// `mambo quantize`
#[derive(Args)]
pub struct QuantizeArgs {
    /// A folder, a .gguf file or a model of the hub such as ORG/NAME:Q4_K_M; the built-in model if left out
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
    let recipe = recipe(args, container)?;
    let path = args.output.path.as_path();
    let output = Output { path, replace: args.output.force, threads: args.output.workers()? };
    output.check()?;
    let model = open::model(args.model.as_deref())?;
    output.check_not_source(&model)?;
    // What is measured at the end is read now: hours of work must not end in a missing file.
    let whole = |path| TextFile { path, window: DEFAULT_WINDOW, windows: None };
    let (calibrating, check) = (args.calibrate.as_deref().map(whole), args.check.as_deref().map(whole));
    for text in calibrating.iter().chain(&check) {
        text.windows(&model)?;
    }
    let interrupt = Interrupt::install()?;
    output.check_room(&layout(&recipe, &model, container)?)?;
    let options = LoadOptions { step_tokens: SCORE_TOKENS, ..LoadOptions::default() };
    // Beside what is being written, the CPU is as good as any.
    let place = BackendArgs::cpu(args.output.threads);
    let calibrated = calibrating.map(|text| calibrate(&model, &options, place, &text, &interrupt));
    let importance = with_hint(calibrated.transpose(), about_room, || {
        Some("--calibrate runs the model, leave it out".to_owned())
    })?;
    let converted = writing("quantizing", &interrupt, |progress| {
        convert(&model, &recipe, importance.as_ref(), output, progress)
    })?;
    let (bytes, layout) = (converted.bytes, &converted.layout);
    let errors = Errors(converted.errors);
    let compared = check.map(|text| compare_with_source(&model, path, &options, place, &text, &interrupt));
    let compared = with_hint(compared.transpose(), about_room, || {
        Some("the file is written; --check runs it beside its source, leave it out".to_owned())
    })?;
    if args.output.json {
        let mut summary = summary(path, bytes, layout, &recipe);
        summary["errors"] = errors.to_json();
        summary["check"] = json!(compared.map(|c| c.to_json()));
        return Ok(put_json(&summary)?);
    }
    errors.print();
    report(path, bytes, layout, &recipe, false)?;
    if let Some(compared) = compared {
        put(&compared.text(&path.display().to_string(), model.name()))?;
    }
    Ok(())
}

/// The recipe that the flags ask for.
fn recipe(args: &QuantizeArgs, container: Container) -> Result<Recipe> {
    let kind = args.kind.as_deref().unwrap_or(container.default_mix());
    let named = if args.pure { Recipe::pure(kind) } else { Recipe::named(kind, container) };
    let mut recipe = with_hint(named, about_types, || Some("--type names the type".to_owned()))?;
    for rule in &args.tensor {
        let flag = || Some("--tensor gives the rule".to_owned());
        recipe = with_hint(recipe.with_rule(rule), about_rules, flag)?;
    }
    Ok(recipe)
}

/// Whether the recipe suits model and output, before any work is done.
fn layout(recipe: &Recipe, model: &Model, container: Container) -> Result<Layout> {
    let layout = recipe.layout(&model.spec, container);
    let layout = with_hint(layout, about_types, || {
        let names = "--type and --tensor name the types";
        Some(match container {
            Container::Gguf => format!("{names}, and an --output without .gguf is a folder"),
            Container::Safetensors => names.to_owned(),
        })
    });
    with_hint(layout, about_rules, || Some("--tensor gives the rule".to_owned()))
}

/// Runs something that writes a model, with a progress bar if a person is watching; Ctrl-C ends it.
pub fn writing<T>(
    what: &str,
    interrupt: &Interrupt,
    write: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<T, ConvertError>,
) -> Result<T> {
    let bar = ByteBar::new(what, 0);
    let written = write(&mut |progress| {
        bar.at(progress.done, progress.total);
        interrupt.flow()
    });
    bar.done();
    interrupt.or_stopped(written, "nothing was written")
}

/// Runs the model over a text to learn which inputs matter.
fn calibrate(
    model: &Model,
    options: &LoadOptions,
    place: BackendArgs,
    text: &TextFile,
    interrupt: &Interrupt,
) -> Result<Importance> {
    let windows = text.windows(model)?;
    let options = LoadOptions { at_least_tokens: windows.length(), ..options.clone() };
    let backend = open::backend(place)?;
    let mut calibration = open::with_bar(|on_event| Calibration::load(model, backend, &options, on_event))?;
    let bar = CountBar::new("calibrating", windows.count() as u64);
    let measured = calibration.measure(&windows, &mut |done| {
        bar.at(done);
        interrupt.flow()
    });
    bar.done();
    interrupt.or_stopped(measured, "nothing was written")
}

/// Compares what was written with its source; the caches of both are exact.
fn compare_with_source(
    model: &Model,
    written: &Path,
    options: &LoadOptions,
    place: BackendArgs,
    text: &TextFile,
    interrupt: &Interrupt,
) -> Result<Report> {
    let written = open::model(Some(&written.display().to_string()))?;
    compare((&written, model), &options.clone().exact(), place, text, interrupt)
}

/// The errors of the weights, by what they are in their layer and how they are stored.
struct Errors(BTreeMap<(String, &'static str), SquaredError>);

impl Errors {
    /// Those that lost something.
    fn lossy(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let rows = self.0.iter().map(|((role, dtype), error)| (role.as_str(), *dtype, error.relative()));
        rows.filter(|(_, _, error)| *error > 0.0)
    }

    fn print(&self) {
        if self.lossy().next().is_some() {
            put_note("  weight        type    error");
        }
        for (role, dtype, error) in self.lossy() {
            put_note(format_args!("  {role:<13} {dtype:<7} {:.2}%", error * 100.0));
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
        let megabytes = bytes as f64 / 1e6;
        put_note(format_args!("  {:<6} {tensors:>5} tensors {megabytes:>9.1} MB", dtype.name()));
    }
    for note in &layout.notes {
        put_note(format_args!("  note: {note}"));
    }
    let (megabytes, bits) = (bytes as f64 / 1e6, layout.bits_per_weight());
    put_note(format_args!("wrote {}: {megabytes:.1} MB, {bits:.2} bits per weight", path.display()));
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
