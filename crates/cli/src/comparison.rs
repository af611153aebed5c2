//! Two models, or one model in two settings, over one text: loads them, shows progress, reports.

use anyhow::Result;
use mambo_runtime::quality::{self, Comparison};
use mambo_runtime::{LoadOptions, Model};
use serde_json::{Value, json};

use crate::args::BackendArgs;
use crate::interrupt::Interrupt;
use crate::open;
use crate::progress::CountBar;
use crate::text_file::TextFile;

/// How far a model is from its base, and how it kept its caches meanwhile.
pub struct Report {
    /// The numbers.
    pub comparison: Comparison,
    kv_types: String,
    state_type: &'static str,
}

/// Scores the text with both; the base's caches are f32.
pub fn compare(
    (model, base): (&Model, &Model),
    options: &LoadOptions,
    place: BackendArgs,
    text: &TextFile,
    interrupt: &Interrupt,
) -> Result<Report> {
    let windows = text.windows(model)?;
    Comparison::check((model, &windows), (base, &text.windows(base)?))?;
    let options = LoadOptions { at_least_tokens: windows.length(), ..options.clone() };
    let mut base_engine = open::engine(base, place, &options.clone().exact())?;
    let mut engine = open::engine(model, place, &options)?;
    let (kv_types, state_type) = (engine.config().kv_types.to_string(), engine.config().state_elem.name());
    let bar = CountBar::new("windows", windows.count() as u64);
    let mut progress = |done| {
        bar.at(done);
        interrupt.flow()
    };
    let found = quality::compare((model, &mut engine), (base, &mut base_engine), &windows, &mut progress);
    bar.done();
    let comparison = interrupt.or_stopped(found, "nothing was measured")?;
    Ok(Report { comparison, kv_types, state_type })
}

impl Report {
    /// Everything in words.
    pub fn text(&self, model: &str, base: &str) -> String {
        let Report { comparison, kv_types, state_type } = self;
        let tokens = comparison.divergence.count();
        let mut text = format!(
            "KL divergence of {model} with keys and values {kv_types} and states {state_type} from {base} in f32, over {tokens} tokens\n"
        );
        for (name, value) in comparison.divergence.summary() {
            text += &format!("  {name:8} {:>10} nats\n", nats(value));
        }
        text += &format!("  same most likely token {:.2}%\n", comparison.divergence.agreement() * 100.0);
        let (perplexity, base) =
            (comparison.likelihood.perplexity().0, comparison.base_likelihood.perplexity().0);
        text + &format!("  perplexity {perplexity:.4}, of the base {base:.4}\n")
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> Value {
        let mut report = self.comparison.divergence.to_json();
        report["kv_type"] = json!(self.kv_types);
        report["state_type"] = json!(self.state_type);
        report["perplexity"] = self.comparison.likelihood.to_json();
        report["base_perplexity"] = self.comparison.base_likelihood.to_json();
        report
    }
}

/// A divergence for people: plain where that shows something, else with its power of ten.
fn nats(value: f64) -> String {
    if value >= 1e-4 { format!("{value:.6}") } else { format!("{value:.2e}") }
}
