//! `mambo bench`: prefill and decode speed through the engine, beside what the machine could do.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use mambo_engine::{Engine, Event, Request, human_bytes};
use mambo_kernel::ProgramId;
use mambo_plan::{CallCost, CostContext, program_cost};
use serde_json::{Value, json};

use crate::amounts::{Columns, Spread};
use crate::args::ModelArgs;
use crate::bandwidth::read_bandwidth;
use crate::described::{Described, TypeTable};
use crate::machine;
use crate::model::{EngineUse, Model};
use crate::terminal::{put, put_json};
use crate::workload::{RandomIds, WARM_UP, cancel_all, start_sequences, started_tokens};

/// `mambo bench`
#[derive(Args)]
pub struct BenchArgs {
    /// Prompt tokens to prefill; 0 skips the measurement
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub prompt: usize,
    /// Tokens to generate per sequence; 0 skips the measurement
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 128)]
    pub tokens: usize,
    /// Sequences decoded at once, one measurement each
    #[arg(short, long, value_name = "B,...", value_delimiter = ',', default_values_t = [1, 8])]
    pub batch: Vec<usize>,
    /// Tokens each sequence holds before decoding is measured
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub depth: usize,
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
    tokens: usize,
    /// Tokens per second.
    rate: Spread,
    bytes_per_token: f64,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    check(args)?;
    let described = Described::open(args.model.model.as_deref())?;
    let types = described.types()?;
    let model = Model::open(&args.model)?;
    let start = Instant::now();
    let (mut engine, threads) = load(args, &model)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let mut ids = RandomIds::below(model.spec.vocab);
    let mut found = Vec::new();
    if args.prompt > 0 {
        found.push(measure_prefill(args, &mut engine, &mut ids, &types)?);
    }
    for &batch in args.batch.iter().filter(|_| args.tokens > 0) {
        found.push(measure_decode(args, batch, &mut engine, &mut ids, &types)?);
    }
    // Asked before the bandwidth is measured, which takes memory of its own.
    let peak = machine::peak_memory();
    let bandwidth = read_bandwidth(threads)?;
    let machine = json!({
        "backend": engine.backend().name(),
        "threads": threads,
        "bandwidth_bytes_per_second": bandwidth,
        "load_seconds": load_seconds,
        "weight_bytes": engine.backend().weight_bytes(),
        "peak_memory_bytes": peak,
    });
    if args.json {
        let results: Vec<Value> = found.iter().map(|m| m.to_json(bandwidth)).collect();
        put_json(&json!({"model": model.name(), "machine": machine, "results": results}))?;
        return Ok(());
    }
    put(&format!(
        "{}\n{}, reads {:.1} GB/s; {} of weights loaded in {load_seconds:.2} s; peak memory {}\n\n{}",
        model.name(),
        engine.backend().name(),
        bandwidth / 1e9,
        human_bytes(engine.backend().weight_bytes() as u64),
        peak.map_or("unknown".to_owned(), human_bytes),
        table(&found, bandwidth),
    ))?;
    Ok(())
}

fn check(args: &BenchArgs) -> Result<()> {
    if args.repeats == 0 {
        bail!("--repeats is 0; measure at least once");
    }
    if args.prompt == 0 && args.tokens == 0 {
        bail!("-p 0 and -n 0 leave nothing to measure; raise one of them");
    }
    if args.batch.contains(&0) {
        bail!("--batch holds a 0; every batch needs at least one sequence");
    }
    Ok(())
}

/// Whether all rounds go on with the same sequences: deep ones take much longer to fill than to decode, and some
/// tokens more do not matter to them.
fn goes_on(args: &BenchArgs) -> bool {
    args.depth > args.model.chunk && args.depth / 8 >= args.tokens.saturating_mul(args.repeats)
}

/// Tokens that a sequence decodes while it counts.
fn decoded_tokens(args: &BenchArgs) -> usize {
    if goes_on(args) { args.tokens.saturating_mul(args.repeats) } else { args.tokens }
}

/// An engine with room for the largest measurement and no more.
fn load(args: &BenchArgs, model: &Model) -> Result<(Engine, usize)> {
    let sequences = args.batch.iter().copied().max().unwrap_or(1);
    let decoded = started_tokens(sequences, args.depth, args.model.chunk)
        .saturating_add(decoded_tokens(args))
        .saturating_add(WARM_UP);
    let need = args.prompt.max(decoded).saturating_add(1);
    let mut flags = args.model.clone();
    flags.context = Some(flags.context.unwrap_or(need));
    if flags.context < Some(need) {
        bail!("--context holds fewer than the {need} tokens this measurement needs; leave it out");
    }
    let usage = EngineUse { sequences, ..EngineUse::default() };
    let threads = args.model.threads.unwrap_or(usize::MAX).min(machine::cores());
    Ok((model.engine(&flags, usage)?, threads))
}

fn measure_prefill(
    args: &BenchArgs,
    engine: &mut Engine,
    ids: &mut RandomIds,
    types: &TypeTable,
) -> Result<Measurement> {
    let mut rates = Vec::new();
    for round in 0..=args.repeats {
        let request = Request { prompt: ids.take(args.prompt), max_tokens: Some(1), ..Default::default() };
        let start = Instant::now();
        let id = engine.submit(request)?;
        while !engine.step()?.iter().any(|e| matches!(e, Event::Token { .. })) {}
        // The first round warms caches and page tables up and does not count.
        if round > 0 {
            rates.push(args.prompt as f64 / start.elapsed().as_secs_f64());
        }
        engine.cancel(id);
    }
    let (program, _) = engine.program_ids();
    let chunk = args.model.chunk;
    let mut bytes = 0;
    for first in (0..args.prompt).step_by(chunk) {
        let tokens = chunk.min(args.prompt - first);
        bytes += step_cost(engine, program, types, tokens, 1, first).bytes;
    }
    Ok(Measurement {
        name: format!("prefill {}", args.prompt),
        phase: "prefill",
        batch: 1,
        tokens: args.prompt,
        rate: Spread::of(&rates),
        bytes_per_token: bytes as f64 / args.prompt as f64,
    })
}

fn measure_decode(
    args: &BenchArgs,
    batch: usize,
    engine: &mut Engine,
    ids: &mut RandomIds,
    types: &TypeTable,
) -> Result<Measurement> {
    let mut rates = Vec::new();
    let mut sequences = Vec::new();
    for round in 0..=args.repeats {
        if round == 0 || !goes_on(args) {
            cancel_all(engine, &mut sequences);
            sequences = start_sequences(engine, ids, batch, args.depth)?;
        }
        let steps = if round == 0 { WARM_UP } else { args.tokens };
        let start = Instant::now();
        let mut tokens = 0;
        for _ in 0..steps {
            tokens += engine.step()?.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        }
        if round > 0 {
            rates.push(tokens as f64 / start.elapsed().as_secs_f64());
        }
    }
    cancel_all(engine, &mut sequences);
    let (_, program) = engine.program_ids();
    let cost = step_cost(engine, program, types, batch, batch, args.depth + decoded_tokens(args) / 2);
    Ok(Measurement {
        name: format!("decode {} x {batch}", args.tokens),
        phase: "decode",
        batch,
        tokens: args.tokens,
        rate: Spread::of(&rates),
        bytes_per_token: cost.bytes as f64 / batch as f64,
    })
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
    let context = CostContext {
        tokens,
        wanted: segments,
        segments,
        depth,
        kv_types: engine.config().kv_types,
        state_elem: engine.config().state_elem,
        weight_bytes: &|key| engine.backend().held_bytes(key).unwrap_or_else(|| types.bytes(&key.name)),
    };
    program_cost(engine.backend().program(program), &context).into_iter().sum()
}

impl Measurement {
    fn bytes_per_second(&self) -> f64 {
        self.bytes_per_token * self.rate.median
    }

    fn to_json(&self, bandwidth: f64) -> Value {
        json!({
            "phase": self.phase,
            "batch": self.batch,
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
