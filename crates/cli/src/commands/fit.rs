//! `mambo fit`: what a model takes and how fast it can be on this machine, from metadata alone.

use anyhow::{Context, Result, bail};
use clap::Args;
use mambo_convert::{Container, ConvertError, Recipe};
use mambo_engine::{MemoryNeed, PlanOptions, SCORE_TOKENS, human_bytes, plan};
use mambo_kernel::{
    Backend, CacheLayout, CacheTypes, PAGE_TOKENS, Phase, Program, StepShape, WeightKey, program_cost,
};
use mambo_model::{BuildOptions, ModelSpec};
use mambo_runtime::{DEFAULT_CONTEXT, DEFAULT_STEP_TOKENS, Described, TypeTable};
use serde_json::{Value, json};

use crate::amounts::{Columns, context_text};
use crate::args::{BackendArgs, CacheArgs, NameArgs};
use crate::bandwidth::bandwidth_of;
use crate::hints::{about_types, with_hint};
use crate::open;
use crate::terminal::{put, put_json};

/// `mambo fit`
#[derive(Args)]
pub struct FitArgs {
    /// The model.
    #[command(flatten)]
    pub model: NameArgs,
    /// Pretend that the model was quantised to this type or mix, as `quantize --type` does it
    #[arg(long, value_name = "TYPE")]
    pub quant: Option<String>,
    /// Where it would run.
    #[command(flatten)]
    pub place: BackendArgs,
    /// Memory to count on in GiB, instead of what is available now
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
    /// Read bandwidth to count on in GB/s, instead of measuring it
    #[arg(long, value_name = "GB/S")]
    pub bandwidth: Option<f64>,
    /// How caches would be stored.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Contexts that are always shown.
const CONTEXTS: [usize; 3] = [DEFAULT_CONTEXT, 32 << 10, 128 << 10];

/// Everything the answer rests on.
struct Fit {
    types: TypeTable,
    decode: Program,
    weights: u64,
    arena: u64,
    layout: CacheLayout,
    trained: Option<usize>,
    memory: u64,
    bandwidth: f64,
    /// Whether the types are those of the model and not of a flag.
    as_stored: bool,
    /// Whether the memory is a GPU's.
    on_device: bool,
}

/// The bytes one decoded token moves.
#[derive(Clone, Copy, serde::Serialize)]
struct TokenBytes {
    weights: u64,
    kv: u64,
    state_and_activations: u64,
}

impl TokenBytes {
    fn total(&self) -> u64 {
        self.weights + self.kv + self.state_and_activations
    }
}

/// Runs the command.
pub fn run(args: &FitArgs) -> Result<()> {
    let described = open::described_anywhere(args.model.name())?;
    let types = match &args.quant {
        None => described.types()?,
        Some(name) => with_hint(quantised(name, &described.spec), about_types, || {
            Some("--quant names the type".to_owned())
        })?,
    };
    let backend = open::backend(args.place)?;
    let budget = backend.memory()?;
    let memory = match args.memory {
        Some(gib) if gib > 0.0 => (gib * f64::from(1 << 30)) as u64,
        Some(_) => bail!("--memory must be above 0"),
        None => budget
            .device
            .or(budget.host)
            .context("this system does not say how much memory is free; give it with --memory")?,
    };
    let bandwidth = match args.bandwidth {
        Some(rate) if rate > 0.0 => rate * 1e9,
        Some(_) => bail!("--bandwidth must be above 0"),
        None => bandwidth_of(&*backend, args.place)?,
    };
    let mut fit = Fit::new(&described, types, &args.cache, &*backend, memory, bandwidth)?;
    fit.on_device = budget.device.is_some() && args.memory.is_none();
    fit.as_stored = args.quant.is_none();
    if args.json {
        put_json(&fit.to_json(&described))?;
    } else {
        put(&fit.text(&described, args.bandwidth.is_some()))?;
    }
    Ok(())
}

/// The types of a model that was quantised: as a GGUF file, or as a folder where only that can hold them.
fn quantised(name: &str, spec: &ModelSpec) -> Result<TypeTable> {
    let types = |container| Recipe::named(name, container)?.types(spec, container);
    match types(Container::Gguf) {
        Err(ConvertError::NotInGguf { .. }) => Ok(types(Container::Safetensors)?),
        types => Ok(types?),
    }
}

impl Fit {
    fn new(
        described: &Described,
        types: TypeTable,
        cache: &CacheArgs,
        backend: &dyn Backend,
        memory: u64,
        bandwidth: f64,
    ) -> Result<Fit> {
        let graph = described.spec.trunk_graph(BuildOptions::default())?;
        let weight_type = |name: &str| types.dtype(name);
        let wanted = [
            (Phase::Decode, 1, 1),
            (Phase::Prefill, DEFAULT_STEP_TOKENS, 1),
            (Phase::Verify, SCORE_TOKENS, SCORE_TOKENS),
        ];
        let options = cache.load_options();
        let caches = CacheTypes { kv: options.kv_types_for(types.dtype("embed")), state: options.state_elem };
        let mut programs = Vec::new();
        for (phase, tokens, rows) in wanted {
            let (max_tokens, max_wanted, weight_type) = (tokens, rows, &weight_type);
            programs.push(plan(
                &graph,
                backend,
                &PlanOptions { phase, max_tokens, max_wanted, caches, weight_type },
            )?);
        }
        let mut keys: Vec<WeightKey> = programs.iter().flat_map(|p| p.weights.clone()).collect();
        keys.sort();
        keys.dedup();
        let layout = CacheLayout {
            kv_layers: graph.kv_layers.clone(),
            kv_types: caches.kv,
            state_layers: graph.state_layers.clone(),
            state_elem: caches.state,
            ..Default::default()
        };
        let arena = programs.iter().map(|p| p.arena_bytes).max().unwrap_or(0) as u64;
        Ok(Fit {
            weights: types.key_bytes(&keys),
            decode: programs.swap_remove(0),
            arena,
            layout,
            trained: described.spec.context,
            types,
            memory,
            bandwidth,
            as_stored: true,
            on_device: false,
        })
    }

    /// What so many sequences of so many tokens take.
    fn need(&self, sequences: usize, tokens: usize) -> MemoryNeed {
        let pages = tokens.div_ceil(PAGE_TOKENS) * sequences;
        MemoryNeed {
            weights: self.weights,
            kv: (self.layout.kv_bytes_per_token() * PAGE_TOKENS * pages) as u64,
            state: (self.layout.slot_bytes() * sequences) as u64,
            arena: self.arena,
            snapshots: 0,
        }
    }

    fn fits(&self, sequences: usize, tokens: usize) -> bool {
        self.need(sequences, tokens).total() <= self.memory
    }

    /// The longest context of one sequence; nothing if not even the shortest fits.
    fn longest_context(&self) -> Option<usize> {
        let pages = largest(ModelSpec::MAX_CONTEXT / PAGE_TOKENS, |pages| self.fits(1, pages * PAGE_TOKENS))?;
        Some(pages * PAGE_TOKENS)
    }

    /// The most sequences of so many tokens.
    fn most_sequences(&self, tokens: usize) -> Option<usize> {
        largest(1 << 20, |sequences| self.fits(sequences, tokens))
    }

    /// Bytes one token moves after `depth` others.
    fn token_bytes(&self, depth: usize) -> TokenBytes {
        let total = |depth: usize, weight_bytes: &dyn Fn(&WeightKey) -> u64| -> u64 {
            let types = CacheTypes { kv: self.layout.kv_types, state: self.layout.state_elem };
            let shape = StepShape { tokens: 1, wanted: 1, segments: 1, depth };
            program_cost(&self.decode, &shape, types, weight_bytes).iter().map(|c| c.bytes).sum()
        };
        let stored = |key: &WeightKey| self.types.bytes(&key.name);
        let (all, fresh, bare) = (total(depth, &stored), total(0, &stored), total(0, &|_| 0));
        TokenBytes { weights: fresh - bare, kv: all - fresh, state_and_activations: bare }
    }

    fn contexts(&self) -> Vec<usize> {
        let mut contexts = CONTEXTS.to_vec();
        contexts.extend(self.trained);
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }

    fn text(&self, described: &Described, given_bandwidth: bool) -> String {
        let mut text = format!("{}\n", described.name);
        if let Some(assumption) = &self.types.assumption {
            text += &format!("({assumption})\n");
        }
        let state = self.layout.slot_bytes() as u64;
        text += &format!(
            "\nmemory      {} available{}\n  weights   {}\n  state     {} per sequence ({})\n  kv        {} per token ({})\n  arena     {}\n\n",
            human_bytes(self.memory),
            if self.on_device { " on the GPU" } else { "" },
            human_bytes(self.weights)
                + if described.spec.mtp.is_some() { " without the MTP head" } else { "" },
            human_bytes(state),
            self.layout.state_elem.name(),
            human_bytes(self.layout.kv_bytes_per_token() as u64),
            self.layout.kv_types,
            human_bytes(self.arena),
        );
        text += &self.context_table();
        text += &format!("\n{}\n\n", self.verdict());
        let read = if given_bandwidth { "given" } else { "measured" };
        let bytes = self.token_bytes(0);
        text += &format!(
            "decode speed, at most: {:.1} GB/s ({read}) / {} per token = {:.1} tok/s\n  \
             weights read {}, state and activations {}; each cached token adds {}\n",
            self.bandwidth / 1e9,
            human_bytes(bytes.total()),
            self.rate(0),
            human_bytes(bytes.weights),
            human_bytes(bytes.state_and_activations),
            human_bytes(self.layout.kv_bytes_per_token() as u64),
        );
        text
    }

    fn rate(&self, depth: usize) -> f64 {
        self.bandwidth / self.token_bytes(depth).total() as f64
    }

    fn context_table(&self) -> String {
        let mut table = Columns::new(&["context", ">kv", ">total", ">tok/s", "one sequence"]);
        for tokens in self.contexts() {
            let need = self.need(1, tokens);
            let trained = if Some(tokens) == self.trained { " (trained)" } else { "" };
            table.row([
                context_text(tokens) + trained,
                human_bytes(need.kv),
                human_bytes(need.total()),
                format!("{:.1}", self.rate(tokens)),
                if self.fits(1, tokens) { "fits" } else { "does not fit" }.to_owned(),
            ]);
        }
        table.text()
    }

    fn verdict(&self) -> String {
        let Some(longest) = self.longest_context() else {
            let short = self.need(1, PAGE_TOKENS).total() - self.memory;
            return format!(
                "does not fit: {} are missing; use a smaller quantisation{} or a machine with more memory",
                human_bytes(short),
                if self.as_stored { " (try --quant q4_0)" } else { "" },
            );
        };
        let context = self.comfortable_context();
        let sequences = self.most_sequences(context).unwrap_or(0);
        let longest = match self.trained {
            Some(trained) if longest >= trained => {
                format!("the whole trained context of {}", context_text(trained))
            }
            _ => format!("{longest} tokens"),
        };
        format!("fits: one sequence with {longest}, or {sequences} sequences of {}", context_text(context))
    }

    /// The context sequences are counted at: what commands use unless told otherwise.
    fn comfortable_context(&self) -> usize {
        self.trained.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT)
    }

    fn to_json(&self, described: &Described) -> Value {
        let context = self.comfortable_context();
        let contexts: Vec<Value> = self
            .contexts()
            .into_iter()
            .map(|tokens| {
                let need = self.need(1, tokens);
                json!({
                    "tokens": tokens,
                    "kv_bytes": need.kv,
                    "total_bytes": need.total(),
                    "fits": self.fits(1, tokens),
                    "token_bytes": self.token_bytes(tokens),
                    "decode_tokens_per_second": self.rate(tokens),
                })
            })
            .collect();
        json!({
            "model": described.name,
            "assumption": self.types.assumption,
            "weight_bytes": self.weights,
            "kv_type": self.layout.kv_types.to_string(),
            "state_type": self.layout.state_elem.name(),
            "kv_bytes_per_token": self.layout.kv_bytes_per_token(),
            "state_bytes_per_sequence": self.layout.slot_bytes(),
            "arena_bytes": self.arena,
            "available_bytes": self.memory,
            "bandwidth_bytes_per_second": self.bandwidth,
            "fits": self.longest_context().is_some(),
            "longest_context": self.longest_context(),
            "sequences": {"context": context, "most": self.most_sequences(context).unwrap_or(0)},
            "token_bytes": self.token_bytes(0),
            "decode_tokens_per_second": self.rate(0),
            "contexts": contexts,
        })
    }
}

/// The largest number up to `most` that holds, if 1 does; holding must not come back once lost.
fn largest(most: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    if !holds(1) {
        return None;
    }
    let (mut good, mut bad) = (1, most + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) { good = middle } else { bad = middle }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_at_both_ends_and_between() {
        assert_eq!(largest(100, |_| true), Some(100));
        assert_eq!(largest(100, |n| n <= 37), Some(37));
        assert_eq!(largest(100, |n| n <= 1), Some(1));
        assert_eq!(largest(100, |_| false), None);
    }
}
