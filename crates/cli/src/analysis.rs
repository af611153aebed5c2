//! Runs a program of a loaded model with every call timed, and joins the times with what each call had
//! to move.

use anyhow::{Context, Result, bail};
use mambo_engine::{Engine, SnapshotRoom};
use mambo_kernel::{CallCost, CallTime, ProgramId, StepShape, WeightKey, program_cost};
use mambo_plan::{Kernels, Measured, layer_kinds};
use serde_json::{Value, json};

use crate::amounts::counted;
use crate::args::ModelArgs;
use crate::bandwidth::bandwidth_of;
use crate::hints::{about_room, with_hint};
use crate::open;
use crate::workload::{Contexts, RandomIds, WARM_UP, after, cancel_all, start_prompt, step};

/// Decode steps that are timed.
const DECODE_STEPS: usize = 32;
/// Prompts that are timed.
const PROMPTS: usize = 3;

/// What to run.
#[derive(Clone, Copy)]
pub struct Workload {
    /// Prompts, not decoding.
    pub prefill: bool,
    /// Tokens of a step: of a prompt, or one of each sequence.
    pub tokens: usize,
    /// Tokens each sequence holds before; of a prompt a multiple of a step's.
    pub depth: usize,
}

/// A program that ran.
pub struct Analysis {
    engine: Engine,
    program: ProgramId,
    costs: Vec<CallCost>,
    times: Vec<CallTime>,
    bandwidth: f64,
    name: String,
    work: Workload,
}

/// Loads the model and measures steps of a program.
pub fn measure(args: &ModelArgs, work: Workload) -> Result<Analysis> {
    let Workload { prefill, tokens, depth } = work;
    let model = open::model(args.model.as_deref())?;
    let mut options = args.load_options();
    if prefill {
        // What is timed is one step.
        options.step_tokens = tokens;
    }
    let sequences = if prefill { 1 } else { tokens };
    let own = if prefill { tokens } else { 1 + WARM_UP + DECODE_STEPS };
    let room = depth.saturating_add(own).saturating_add(1);
    if let Some(context) = options.context_tokens.filter(|&context| context < room) {
        bail!(
            "--context {context} holds fewer than the {room} tokens that --tokens {tokens} and --depth {depth} \
             need; raise it or leave it out"
        );
    }
    options.context_tokens = Some(options.context_tokens.unwrap_or(room));
    options.sequences = sequences;
    options.snapshots = if prefill { SnapshotRoom::default() } else { Contexts::room(sequences, &[depth]) };
    let loaded = open::engine(&model, args.place, &options);
    let mut engine = with_hint(loaded, about_room, || Some(room_flags(args, work)))?;
    let program = if prefill { engine.program_ids().0 } else { engine.program_ids().1 };
    let mut ids = RandomIds::below(model.spec.vocab);
    let time = if prefill { time_prompts } else { time_decoding };
    time(&mut engine, &mut ids, work).with_context(|| model.name().to_owned())?;
    let times = engine.backend().call_times(program)?;
    let weights = model.weights()?;
    let depth = if prefill { depth } else { depth + WARM_UP + DECODE_STEPS / 2 };
    let shape = StepShape { tokens, wanted: sequences, segments: sequences, depth };
    let weight_bytes = |key: &WeightKey| {
        let stored = || weights.get(&key.name).map_or(0, |w| w.stored_bytes());
        engine.backend().held_bytes(key).unwrap_or_else(stored)
    };
    let types = engine.config().cache_types();
    let costs = program_cost(engine.backend().program(program), &shape, types, &weight_bytes);
    let bandwidth = bandwidth_of(engine.backend(), args.place)?;
    Ok(Analysis { costs, times, bandwidth, name: model.name().to_owned(), work, program, engine })
}

/// The flags that decide how much memory a measurement takes.
fn room_flags(args: &ModelArgs, work: Workload) -> String {
    let mut flags = vec![format!("--tokens {}", work.tokens)];
    flags.extend((work.depth > 0).then(|| format!("--depth {}", work.depth)));
    flags.extend(args.context.map(|context| format!("--context {context}")));
    format!("lower {}", flags.join(" or "))
}

/// Times the last step of prompts.
fn time_prompts(engine: &mut Engine, ids: &mut RandomIds, work: Workload) -> Result<()> {
    // A long context takes time to read, and warms caches and page tables up as a first prompt does.
    let (warm_up, timed) = if work.depth > 0 { (0, 1) } else { (1, PROMPTS) };
    for prompt in 0..warm_up + timed {
        let id = start_prompt(engine, ids, work.depth, work.tokens)?;
        if prompt == warm_up {
            engine.backend_mut().set_profiling(true)?;
        }
        step(engine)?;
        engine.cancel(id);
    }
    engine.backend_mut().set_profiling(false)?;
    Ok(())
}

/// Times steps that decode all sequences.
fn time_decoding(engine: &mut Engine, ids: &mut RandomIds, work: Workload) -> Result<()> {
    let sequences = Contexts::read(engine, ids, work.tokens, work.depth)?.start(engine, ids, work.tokens)?;
    for _ in 0..WARM_UP {
        step(engine)?;
    }
    engine.backend_mut().set_profiling(true)?;
    for _ in 0..DECODE_STEPS {
        step(engine)?;
    }
    engine.backend_mut().set_profiling(false)?;
    cancel_all(engine, sequences);
    Ok(())
}

impl Analysis {
    fn measured(&self) -> Measured<'_> {
        let backend = self.engine.backend();
        Measured {
            program: backend.program(self.program),
            kernels: Kernels::of(backend),
            costs: &self.costs,
            times: &self.times,
            bandwidth: self.bandwidth,
        }
    }

    fn seconds(&self, call: usize) -> f64 {
        let time = self.times.get(call).copied().unwrap_or_default();
        time.total.as_secs_f64() / f64::from(time.runs.max(1))
    }

    fn step_seconds(&self) -> f64 {
        (0..self.costs.len()).map(|i| self.seconds(i)).sum()
    }

    /// The three tables, from the widest view to the closest.
    pub fn text(&self) -> String {
        let measured = self.measured();
        let program = measured.program;
        let runs = self.times.first().map_or(0, |t| t.runs);
        let step = self.step_seconds();
        format!(
            "{}: {} of {}{} on {}, {}\n{:.3} ms per step in kernels, {:.1} tok/s; floor: {:.1} GB/s read\n\n{}\n{}\n{}",
            self.name,
            program.phase.name(),
            counted(self.work.tokens, "token"),
            after(self.work.depth),
            measured.kernels.backend,
            counted(runs as usize, "run"),
            step * 1e3,
            self.work.tokens as f64 / step,
            self.bandwidth / 1e9,
            measured.by_layer_kind(),
            measured.by_op(),
            measured.table(),
        )
    }

    /// The mean step as a trace that browsers' tools show (chrome://tracing, ui.perfetto.dev): calls one after the
    /// other, as they were timed.
    pub fn chrome_trace(&self) -> Value {
        let measured = self.measured();
        let program = measured.program;
        let kinds = layer_kinds(program);
        let mut at = 0.0;
        let mut events = Vec::with_capacity(program.calls.len());
        for (i, call) in program.calls.iter().enumerate() {
            let seconds = self.seconds(i);
            let rate = (seconds > 0.0).then(|| self.costs[i].bytes as f64 / seconds);
            events.push(json!({
                "name": call.label,
                "cat": kinds[i].name(),
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "ts": at * 1e6,
                "dur": seconds * 1e6,
                "args": {
                    "op": call.op.kind().name(),
                    "kernel": measured.kernels.rows.get(call.kernel).map(|row| &row.name),
                    "bytes": self.costs[i].bytes,
                    "share_of_bandwidth": rate.map(|rate| rate / self.bandwidth),
                },
            }));
            at += seconds;
        }
        json!({
            "displayTimeUnit": "ns",
            "otherData": { "model": self.name, "backend": measured.kernels.backend, "phase": program.phase.name() },
            "traceEvents": events,
        })
    }

    /// Every call with its numbers.
    pub fn to_json(&self) -> Value {
        let measured = self.measured();
        let program = measured.program;
        let kinds = layer_kinds(program);
        let call = |i: usize| {
            let call = &program.calls[i];
            let seconds = self.seconds(i);
            // A call that the clock did not see has no rate.
            let rate = (seconds > 0.0).then(|| self.costs[i].bytes as f64 / seconds);
            json!({
                "label": call.label,
                "op": call.op.kind().name(),
                "layer_kind": kinds[i].name(),
                "kernel": measured.kernels.rows.get(call.kernel).map(|row| &row.name),
                "seconds": seconds,
                "bytes": self.costs[i].bytes,
                "flops": self.costs[i].flops,
                "bytes_per_second": rate,
                "share_of_bandwidth": rate.map(|rate| rate / self.bandwidth),
            })
        };
        let step = self.step_seconds();
        json!({
            "model": self.name,
            "backend": measured.kernels.backend,
            "phase": program.phase.name(),
            "tokens": self.work.tokens,
            "depth": self.work.depth,
            "runs": self.times.first().map_or(0, |t| t.runs),
            "step_seconds": step,
            "tokens_per_second": self.work.tokens as f64 / step,
            "bandwidth_bytes_per_second": self.bandwidth,
            "calls": (0..program.calls.len()).map(call).collect::<Vec<_>>(),
        })
    }
}
