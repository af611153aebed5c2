//! `mambo explain`: graph, passes and plan of a model as text; with --analyze, what each call took.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use mambo_engine::{EngineConfig, ModelGraphs, PlanOptions, SCORE_TOKENS, cache_layout, optimise};
use mambo_graph::Graph;
use mambo_kernel::{Backend, CacheLayout, CacheTypes, Phase, Program};
use mambo_model::{BuildOptions, ModelSpec};
use mambo_plan::{Kernels, LowerOptions, lower, plan_text};
use mambo_runtime::{DEFAULT_CONTEXT, Described, TypeTable};
use serde_json::{Value, json};

use crate::analysis::{self, Workload};
use crate::args::ModelArgs;
use crate::open;
use crate::terminal::{put, put_json, put_note};

/// `mambo explain`
#[derive(Args, Clone)]
pub struct ExplainArgs {
    /// A folder, a .gguf file, a config.json or a preset such as nano-30b; the same as -m
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    /// Which program: decode, prefill, or verify, where every row's logits are wanted
    #[arg(long, value_name = "NAME", value_enum, default_value_t = PhaseName::Decode, hide_possible_values = true)]
    pub phase: PhaseName,
    /// Rows of a step: sequences in decode, prompt tokens in prefill
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// The MTP head instead of the trunk
    #[arg(long)]
    pub mtp: bool,
    /// Print the graph after every pass, SAME where a pass found nothing
    #[arg(long)]
    pub passes: bool,
    /// Print the graph after all passes
    #[arg(long)]
    pub graph: bool,
    /// Print the plan: kernels, shapes, places in memory
    #[arg(long)]
    pub plan: bool,
    /// Load the model, run the program and print measured times beside bytes and bandwidth
    #[arg(long)]
    pub analyze: bool,
    /// With --analyze: tokens each sequence holds before; in prefill rounded up to a multiple of --tokens
    #[arg(short, long, value_name = "N")]
    pub depth: Option<usize>,
    /// With --analyze: write the step as a trace for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE", requires = "analyze")]
    pub trace: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// The phases by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PhaseName {
    /// One token per sequence
    Decode,
    /// Prompt chunks
    Prefill,
    /// Short segments, all rows wanted
    Verify,
}

impl PhaseName {
    fn phase(self) -> Phase {
        match self {
            PhaseName::Decode => Phase::Decode,
            PhaseName::Prefill => Phase::Prefill,
            PhaseName::Verify => Phase::Verify,
        }
    }

    /// Most tokens and wanted rows of a step.
    fn rows(self, tokens: Option<usize>, chunk: usize) -> (usize, usize) {
        match self {
            PhaseName::Decode => (tokens.unwrap_or(1), tokens.unwrap_or(1)),
            PhaseName::Prefill => (tokens.unwrap_or(chunk), 1),
            PhaseName::Verify => (tokens.unwrap_or(SCORE_TOKENS), tokens.unwrap_or(SCORE_TOKENS)),
        }
    }
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let mut args = args.clone();
    args.model.model = args.positional.take().or(args.model.model);
    let args = &args;
    let (tokens, _) = args.phase.rows(args.tokens, args.model.step_tokens());
    if tokens == 0 {
        let flag = if args.tokens.is_some() { "--tokens" } else { "--chunk" };
        bail!("{flag} is 0; a step needs at least one token");
    }
    if tokens > ModelSpec::MAX_CONTEXT {
        bail!("a step of {tokens} tokens is more than the {} this engine allows", ModelSpec::MAX_CONTEXT);
    }
    if args.analyze {
        return analyze(args);
    }
    if args.depth.is_some() {
        bail!("--depth is where --analyze measures; add --analyze or leave --depth out");
    }
    let described = open::described(args.model.model.as_deref())?;
    let types = described.types()?;
    let backend = open::backend(args.model.place)?;
    let stages = Stages::of(args, &described, &types, &*backend)?;
    if args.json {
        put_json(&stages.to_json(args, &described, &types, &*backend))?;
        return Ok(());
    }
    if let Some(assumption) = &types.assumption {
        put_note(format_args!("{}: {assumption}", described.name));
    }
    put(&stages.text(args, &*backend))?;
    Ok(())
}

/// A graph on its way to a program.
struct Stages {
    built: Graph,
    passes: Vec<(&'static str, bool, String)>,
    graph: Graph,
    program: Program,
    caches: CacheLayout,
}

impl Stages {
    fn of(
        args: &ExplainArgs,
        described: &Described,
        types: &TypeTable,
        backend: &dyn Backend,
    ) -> Result<Stages> {
        let spec = &described.spec;
        let built = match (args.mtp, spec.mtp) {
            (false, _) => spec.trunk_graph(BuildOptions::default())?,
            (true, Some(_)) => spec.mtp_graph()?,
            (true, None) => bail!("{} has no MTP head; leave --mtp out", described.name),
        };
        let weight_type = |name: &str| types.dtype(name);
        let phase = args.phase.phase();
        let mut passes = Vec::new();
        let (max_tokens, max_wanted) = args.phase.rows(args.tokens, args.model.step_tokens());
        let load = args.model.load_options();
        let caches = CacheTypes { kv: load.kv_types_for(types.dtype("embed")), state: load.state_elem };
        let options = PlanOptions { phase, max_tokens, max_wanted, caches, weight_type: &weight_type };
        let graph = optimise(&built, backend, &options, &mut |report| {
            passes.push((report.pass.name, report.changed, report.to_string()));
        })?;
        let name = &graph.name;
        let options = LowerOptions { name, phase, max_tokens, max_wanted, caches, weight_type: &weight_type };
        let program = lower(&graph, &Kernels::of(backend), &options)?;
        let sequences = if args.phase == PhaseName::Decode { max_tokens } else { 1 };
        let caches = cache_layout_of(args, described, types, &built, sequences)?;
        Ok(Stages { built, passes, graph, program, caches })
    }

    fn text(&self, args: &ExplainArgs, backend: &dyn Backend) -> String {
        let everything = !(args.passes || args.graph || args.plan);
        let mut parts = Vec::new();
        if args.passes {
            let mut text = format!("== built\n{}", self.built);
            text.extend(self.passes.iter().map(|(_, _, text)| text.as_str()));
            parts.push(text);
        }
        if args.graph || everything {
            parts.push(self.graph.to_string());
        }
        if args.plan || everything {
            parts.push(plan_text(&self.program, &Kernels::of(backend), Some(&self.caches)));
        }
        parts.join("\n")
    }

    fn to_json(
        &self,
        args: &ExplainArgs,
        described: &Described,
        types: &TypeTable,
        backend: &dyn Backend,
    ) -> Value {
        let passes: Vec<Value> = self
            .passes
            .iter()
            .map(|(name, changed, text)| json!({"pass": name, "changed": changed, "text": text}))
            .collect();
        let kernel = |index: usize| backend.kernels().get(index).map_or("?", |row| &row.name);
        let calls: Vec<Value> = self
            .program
            .calls
            .iter()
            .map(|c| json!({"label": c.label, "op": c.op.kind().name(), "kernel": kernel(c.kernel)}))
            .collect();
        json!({
            "model": described.name,
            "assumption": types.assumption,
            "phase": args.phase.phase().name(),
            "backend": backend.name(),
            "built": self.built.to_string(),
            "passes": passes,
            "graph": self.graph.to_string(),
            "plan": plan_text(&self.program, &Kernels::of(backend), Some(&self.caches)),
            "calls": calls,
            "max_tokens": self.program.max_tokens,
            "arena_bytes": self.program.arena_bytes,
            "unpooled_bytes": self.program.unpooled_bytes,
        })
    }
}

/// The caches an engine for this step would make.
fn cache_layout_of(
    args: &ExplainArgs,
    described: &Described,
    types: &TypeTable,
    graph: &Graph,
    sequences: usize,
) -> Result<CacheLayout> {
    let trained = described.spec.context.unwrap_or(DEFAULT_CONTEXT);
    let options = args.model.load_options();
    let config = EngineConfig {
        max_sequences: sequences,
        context_tokens: options.context_for(&described.spec)?,
        step_tokens: options.step_tokens,
        kv_types: options.kv_types_for(types.dtype("embed")),
        state_elem: options.state_elem,
        ..EngineConfig::default()
    };
    let graphs =
        ModelGraphs { trunk: graph, mtp: None, trained_context: trained, vocab: described.spec.vocab };
    Ok(cache_layout(&graphs, &config))
}

fn analyze(args: &ExplainArgs) -> Result<()> {
    if args.mtp {
        bail!("--analyze measures the trunk; leave --mtp out");
    }
    let (tokens, _) = args.phase.rows(args.tokens, args.model.step_tokens());
    let prefill = match args.phase {
        PhaseName::Decode => false,
        PhaseName::Prefill => true,
        PhaseName::Verify => bail!("--analyze measures decode and prefill; choose one with --phase"),
    };
    if prefill && tokens == 1 {
        bail!("a prompt of one token is a decode step; raise --tokens or leave --phase out");
    }
    let depth = args.depth.unwrap_or(0);
    if depth > ModelSpec::MAX_CONTEXT {
        bail!("--depth {depth} is more than the {} tokens this engine allows", ModelSpec::MAX_CONTEXT);
    }
    // All steps of a prompt are as long as the one that is timed.
    let depth = if prefill { depth.next_multiple_of(tokens) } else { depth };
    let analysis = analysis::measure(&args.model, Workload { prefill, tokens, depth })?;
    if let Some(path) = &args.trace {
        let trace = serde_json::to_vec(&analysis.chrome_trace())?;
        std::fs::write(path, trace)
            .with_context(|| format!("cannot write the trace to {}", path.display()))?;
    }
    if args.json {
        put_json(&analysis.to_json())?;
    } else {
        put(&analysis.text())?;
    }
    Ok(())
}
