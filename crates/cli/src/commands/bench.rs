//! `mambo bench`: prefill and decode speed through the engine, beside what the machine could do.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use mambo_cpu::host_memory;
use mambo_engine::{Engine, Event, Request, human_bytes};
use mambo_kernel::{CallCost, ProgramId, StepShape, WeightKey, program_cost};
use mambo_runtime::{LoadOptions, Model, TypeTable};
use serde_json::{Value, json};

use crate::amounts::{Columns, Spread};
use crate::args::ModelArgs;
use crate::bandwidth::bandwidth_of;
use crate::hints::{about_room, with_hint};
use crate::terminal::{put, put_json};
use crate::workload::{Contexts, RandomIds, WARM_UP, after, cancel_all, step};
use crate::{machine, open};

/// `mambo bench`
#[derive(Args)]
pub struct BenchArgs {
    /// Prompt tokens to prefill, one measurement each; 0 skips it
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_values_t = [512])]
    pub prompt: Vec<usize>,
    /// Tokens to generate per sequence; 0 skips the measurement
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 128)]
    pub tokens: usize,
    /// Sequences decoded at once, one measurement each
    #[arg(short, long, value_name = "B,...", value_delimiter = ',', default_values_t = [1, 8])]
    pub batch: Vec<usize>,
    /// Tokens each sequence holds before decoding is measured, one measurement each
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_values_t = [0])]
    pub depth: Vec<usize>,
    /// Repetitions of every measurement
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    pub repeats: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
}

/// One line of the result.
struct Measurement {
    name: String,
    phase: &'static str,
    batch: usize,
    depth: usize,
    tokens: usize,
    /// Tokens per second.
    rate: Spread,
    bytes_per_token: f64,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    check(args)?;
    let model = open::model(args.model.model.as_deref())?;
    let types = open::described(args.model.model.as_deref())?.types()?;
    let start = Instant::now();
    let (mut engine, threads) = load(args, &model)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let ids = RandomIds::below(model.spec.vocab);
    let (found, kept) = measure(args, &mut engine, ids, &types).with_context(|| model.name().to_owned())?;
    // Asked before the bandwidth is measured, which takes memory of its own.
    let peak = host_memory::peak();
    let bandwidth = bandwidth_of(engine.backend(), args.model.place)?;
    let machine = json!({
        "backend": engine.backend().name(),
        "threads": threads,
        "bandwidth_bytes_per_second": bandwidth,
        "load_seconds": load_seconds,
        "weight_bytes": engine.backend().weight_bytes(),
        "peak_memory_bytes": peak,
        "snapshot_bytes": kept,
    });
    if args.json {
        let results: Vec<Value> = found.iter().map(|m| m.to_json(bandwidth)).collect();
        put_json(&json!({"model": model.name(), "machine": machine, "results": results}))?;
        return Ok(());
    }
    put(&format!(
        "{}\n{}, reads {:.1} GB/s; {} of weights loaded in {load_seconds:.2} s; peak memory {}{}\n\n{}",
        model.name(),
        engine.backend().name(),
        bandwidth / 1e9,
        human_bytes(engine.backend().weight_bytes()),
        peak.map_or("unknown".to_owned(), human_bytes),
        if kept > 0 { format!(", of which snapshots {}", human_bytes(kept)) } else { String::new() },
        table(&found, bandwidth),
    ))?;
    Ok(())
}

fn check(args: &BenchArgs) -> Result<()> {
    if args.repeats == 0 {
        bail!("--repeats is 0; measure at least once");
    }
    if args.tokens == 0 && args.prompt.iter().all(|&tokens| tokens == 0) {
        bail!("-p 0 and -n 0 leave nothing to measure; raise one of them");
    }
    if args.batch.contains(&0) {
        bail!("--batch holds a 0; every batch needs at least one sequence");
    }
    for (flag, sizes) in [("prompt", &args.prompt), ("batch", &args.batch), ("depth", &args.depth)] {
        if let Some((_, twice)) = sizes.iter().enumerate().find(|(i, size)| sizes[..*i].contains(size)) {
            bail!("--{flag} holds {twice} twice; once is enough");
        }
    }
    Ok(())
}

/// Everything that was asked for, and the bytes of snapshots that it took.
fn measure(
    args: &BenchArgs,
    engine: &mut Engine,
    mut ids: RandomIds,
    types: &TypeTable,
) -> Result<(Vec<Measurement>, u64)> {
    let mut found = measure_prefill(args, engine, &mut ids, types)?;
    let mut kept = 0;
    if args.tokens > 0 {
        let contexts = read_contexts(args, engine, &mut ids)?;
        kept = contexts.iter().map(|(_, contexts)| contexts.bytes()).sum();
        found.extend(measure_decode(args, &contexts, engine, &mut ids, types)?);
    }
    Ok((found, kept))
}

fn largest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or(0)
}

/// What the largest of all measurements takes.
struct Room<'a> {
    sequences: usize,
    depths: &'a [usize],
    /// Tokens of the longest sequence.
    tokens: usize,
    /// The flags that make it as long.
    flags: Vec<String>,
}

impl Room<'_> {
    fn of(args: &BenchArgs) -> Room<'_> {
        let (sequences, depths, decoded) = match args.tokens {
            0 => (1, &[][..], 0),
            tokens => (largest(&args.batch), &args.depth[..], tokens.saturating_add(1 + WARM_UP)),
        };
        let (prompt, depth) = (largest(&args.prompt), largest(depths));
        let after = depth.saturating_add(decoded);
        let mut flags = match prompt >= after {
            true => vec![format!("--prompt {prompt}")],
            false => vec![format!("--tokens {}", args.tokens)],
        };
        flags.extend((depth > 0).then(|| format!("--depth {depth}")));
        Room { sequences, depths, tokens: prompt.max(after).saturating_add(1), flags }
    }
}

/// An engine with room for the largest of all measurements.
fn load(args: &BenchArgs, model: &Model) -> Result<(Engine, usize)> {
    let Room { sequences, depths, tokens, mut flags } = Room::of(args);
    if let Some(context) = args.model.context {
        if context < tokens {
            let flags = flags.join(" and ");
            bail!("--context {context} holds fewer than the {tokens} tokens that {flags} need; leave it out");
        }
        flags.push(format!("--context {context}"));
    }
    flags.extend((sequences > 1).then(|| format!("--batch {sequences}")));
    let context_tokens = Some(args.model.context.unwrap_or(tokens));
    let snapshots = Contexts::room(sequences, depths);
    let options = LoadOptions { sequences, context_tokens, snapshots, ..args.model.load_options() };
    let threads = args.model.place.threads.unwrap_or(usize::MAX).min(machine::cores());
    let loaded = open::engine(model, args.model.place, &options);
    let engine = with_hint(loaded, about_room, || Some(format!("lower {}", flags.join(" or "))))?;
    Ok((engine, threads))
}

/// Prompts of all lengths take turns, so that a machine that changes meanwhile changes for all of them.
fn measure_prefill(
    args: &BenchArgs,
    engine: &mut Engine,
    ids: &mut RandomIds,
    types: &TypeTable,
) -> Result<Vec<Measurement>> {
    let mut cases: Vec<(usize, Vec<f64>)> =
        args.prompt.iter().filter(|&&tokens| tokens > 0).map(|&tokens| (tokens, Vec::new())).collect();
    // The first turn warms caches and page tables up and does not count.
    for turn in 0..=args.repeats {
        for (tokens, rates) in &mut cases {
            let request = Request { prompt: ids.take(*tokens), max_tokens: Some(1), ..Default::default() };
            let start = Instant::now();
            let id = engine.submit(request)?;
            while !step(engine)?.iter().any(|e| matches!(e, Event::Token { .. })) {}
            if turn > 0 {
                rates.push(*tokens as f64 / start.elapsed().as_secs_f64());
            }
            engine.cancel(id);
        }
    }
    let (program, _) = engine.program_ids();
    let chunk = engine.config().step_tokens;
    let bytes = |tokens: usize| {
        (0..tokens)
            .step_by(chunk)
            .map(|first| step_cost(engine, program, types, chunk.min(tokens - first), 1, first).bytes)
            .sum::<u64>()
    };
    let measured = |(tokens, rates): (usize, Vec<f64>)| Measurement {
        name: format!("prefill {tokens}"),
        phase: "prefill",
        batch: 1,
        depth: 0,
        tokens,
        rate: Spread::of(&rates),
        bytes_per_token: bytes(tokens) as f64 / tokens as f64,
    };
    Ok(cases.into_iter().map(measured).collect())
}

/// So many sequences, each with a context of the same length.
struct DecodeCase<'a> {
    batch: usize,
    depth: usize,
    contexts: &'a Contexts,
    rates: Vec<f64>,
}

/// Runs the contexts of the sequences, for every depth.
fn read_contexts(
    args: &BenchArgs,
    engine: &mut Engine,
    ids: &mut RandomIds,
) -> Result<Vec<(usize, Contexts)>> {
    let read = |&depth| Ok((depth, Contexts::read(engine, ids, largest(&args.batch), depth)?));
    args.depth.iter().map(read).collect()
}

/// Batches at all depths take turns, as prompts do.
fn measure_decode(
    args: &BenchArgs,
    contexts: &[(usize, Contexts)],
    engine: &mut Engine,
    ids: &mut RandomIds,
    types: &TypeTable,
) -> Result<Vec<Measurement>> {
    let mut cases = Vec::new();
    for (depth, contexts) in contexts {
        let case = |&batch| DecodeCase { batch, depth: *depth, contexts, rates: Vec::new() };
        cases.extend(args.batch.iter().map(case));
    }
    for turn in 0..=args.repeats {
        for case in &mut cases {
            let sequences = case.contexts.start(engine, ids, case.batch)?;
            decode(engine, WARM_UP)?;
            if turn > 0 {
                let start = Instant::now();
                let tokens = decode(engine, args.tokens)?;
                case.rates.push(tokens as f64 / start.elapsed().as_secs_f64());
            }
            cancel_all(engine, sequences);
        }
    }
    let (_, program) = engine.program_ids();
    let measured = |DecodeCase { batch, depth, rates, .. }| {
        let middle = depth + WARM_UP + args.tokens / 2;
        let bytes = step_cost(engine, program, types, batch, batch, middle).bytes;
        Measurement {
            name: format!("decode {} x {batch}{}", args.tokens, after(depth)),
            phase: "decode",
            batch,
            depth,
            tokens: args.tokens,
            rate: Spread::of(&rates),
            bytes_per_token: bytes as f64 / batch as f64,
        }
    };
    Ok(cases.into_iter().map(measured).collect())
}

/// Runs steps and counts the tokens they give.
fn decode(engine: &mut Engine, steps: usize) -> Result<usize> {
    let mut tokens = 0;
    for _ in 0..steps {
        tokens += step(engine)?.iter().filter(|e| matches!(e, Event::Token { .. })).count();
    }
    Ok(tokens)
}

/// The least work of one step.
fn step_cost(
    engine: &Engine,
    program: ProgramId,
    types: &TypeTable,
    tokens: usize,
    segments: usize,
    depth: usize,
) -> CallCost {
    let shape = StepShape { tokens, wanted: segments, segments, depth };
    let weight_bytes =
        |key: &WeightKey| engine.backend().held_bytes(key).unwrap_or_else(|| types.bytes(&key.name));
    let program = engine.backend().program(program);
    program_cost(program, &shape, engine.config().cache_types(), &weight_bytes).into_iter().sum()
}

impl Measurement {
    fn bytes_per_second(&self) -> f64 {
        self.bytes_per_token * self.rate.median
    }

    fn to_json(&self, bandwidth: f64) -> Value {
        json!({
            "phase": self.phase,
            "batch": self.batch,
            "depth": self.depth,
            "tokens": self.tokens,
            "tokens_per_second": self.rate,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_second": self.bytes_per_second(),
            "share_of_bandwidth": self.bytes_per_second() / bandwidth,
        })
    }
}

fn table(found: &[Measurement], bandwidth: f64) -> String {
    let head = ["what", ">tok/s", ">min", ">max", ">bytes/token", ">GB/s", ">of bandwidth"];
    let mut table = Columns::new(&head);
    for m in found {
        table.row([
            m.name.clone(),
            format!("{:.1}", m.rate.median),
            format!("{:.1}", m.rate.min),
            format!("{:.1}", m.rate.max),
            human_bytes(m.bytes_per_token as u64),
            format!("{:.2}", m.bytes_per_second() / 1e9),
            format!("{:.0}%", 100.0 * m.bytes_per_second() / bandwidth),
        ]);
    }
    table.text()
}
