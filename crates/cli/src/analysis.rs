//! Runs a program of a loaded model with every call timed, and joins the times with what each call had
//! to move.

use anyhow::Result;
use mambo_engine::{Engine, Event, Request};
use mambo_kernel::{CallTime, ProgramId};
use mambo_plan::{CallCost, CostContext, Kernels, Measured, layer_kinds, program_cost};
use serde_json::{Value, json};

use crate::amounts::counted;
use crate::args::ModelArgs;
use crate::bandwidth::read_bandwidth;
use crate::machine;
use crate::model::{EngineUse, Model};

/// Decode steps that are timed.
const DECODE_STEPS: usize = 32;
/// Prompts that are timed.
const PROMPTS: usize = 3;

/// A program that ran.
pub struct Analysis {
    engine: Engine,
    program: ProgramId,
    costs: Vec<CallCost>,
    times: Vec<CallTime>,
    bandwidth: f64,
    name: String,
    /// Tokens of one step.
    tokens: usize,
}

/// Loads the model and measures a prefill of `tokens` tokens or the decoding of `tokens` sequences.
pub fn measure(args: &ModelArgs, prefill: bool, tokens: usize) -> Result<Analysis> {
    let model = Model::open(args)?;
    let sequences = if prefill { 1 } else { tokens };
    let room = if prefill { tokens.saturating_add(1) } else { 2 * DECODE_STEPS + 2 };
    let mut flags = args.clone();
    flags.context = Some(flags.context.unwrap_or(room).max(room));
    if prefill {
        flags.chunk = tokens;
    }
    let mut engine = model.engine(&flags, EngineUse { sequences, ..EngineUse::default() })?;
    let vocab = model.spec.vocab;
    let program = if prefill { engine.program_ids().0 } else { engine.program_ids().1 };
    // The first run warms caches and page tables up.
    run(&mut engine, vocab, prefill, tokens, 1)?;
    engine.backend_mut().set_profiling(true);
    run(&mut engine, vocab, prefill, tokens, if prefill { PROMPTS } else { DECODE_STEPS })?;
    engine.backend_mut().set_profiling(false);
    let times = engine.backend().call_times(program);
    let weights = model.weights()?;
    let context = CostContext {
        tokens,
        wanted: sequences,
        segments: sequences,
        depth: if prefill { 0 } else { DECODE_STEPS / 2 },
        kv_types: engine.config().kv_types,
        state_elem: engine.config().state_elem,
        weight_bytes: &|key| {
            let stored = || weights.0.get(&key.name).map_or(0, |w| w.stored_bytes());
            engine.backend().held_bytes(key).unwrap_or_else(stored)
        },
    };
    let costs = program_cost(engine.backend().program(program), &context);
    let bandwidth = read_bandwidth(args.threads.unwrap_or_else(machine::cores))?;
    Ok(Analysis { costs, times, bandwidth, name: model.name().to_owned(), tokens, program, engine })
}

/// Decodes so many steps with all sequences, or prefills so many prompts.
fn run(engine: &mut Engine, vocab: usize, prefill: bool, tokens: usize, times: usize) -> Result<()> {
    let (prompt_len, sequences) = if prefill { (tokens, 1) } else { (1, tokens) };
    let rounds = if prefill { times } else { 1 };
    for round in 0..rounds {
        let mut ids = Vec::new();
        for s in 0..sequences {
            let prompt = (0..prompt_len).map(|i| ((i * 7919 + s * 104_729 + round) % vocab) as u32).collect();
            ids.push(engine.submit(Request { prompt, ..Default::default() })?);
        }
        let steps = if prefill { 1 } else { times };
        let mut done = 0;
        while done < steps {
            let events = engine.step()?;
            done += usize::from(events.iter().any(|e| matches!(e, Event::Token { .. })));
        }
        for id in ids {
            engine.cancel(id);
        }
    }
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
            "{}: {} of {} on {}, {}\n{:.3} ms per step in kernels, {:.1} tok/s; roof: {:.1} GB/s read\n\n{}\n{}\n{}",
            self.name,
            program.phase.name(),
            counted(self.tokens, "token"),
            measured.kernels.backend,
            counted(runs as usize, "run"),
            step * 1e3,
            self.tokens as f64 / step.max(1e-12),
            self.bandwidth / 1e9,
            measured.by_layer_kind(),
            measured.by_op(),
            measured.table(),
        )
    }

    /// Every call with its numbers.
    pub fn to_json(&self) -> Value {
        let measured = self.measured();
        let program = measured.program;
        let kinds = layer_kinds(program);
        let call = |i: usize| {
            let call = &program.calls[i];
            let seconds = self.seconds(i);
            let rate = self.costs[i].bytes as f64 / seconds.max(1e-12);
            json!({
                "label": call.label,
                "op": call.op.kind().name(),
                "layer_kind": kinds[i].name(),
                "kernel": measured.kernels.rows.get(call.kernel).map(|row| &row.name),
                "seconds": seconds,
                "bytes": self.costs[i].bytes,
                "flops": self.costs[i].flops,
                "bytes_per_second": rate,
                "share_of_bandwidth": rate / self.bandwidth,
            })
        };
        let step = self.step_seconds();
        json!({
            "model": self.name,
            "backend": measured.kernels.backend,
            "phase": program.phase.name(),
            "tokens": self.tokens,
            "runs": self.times.first().map_or(0, |t| t.runs),
            "step_seconds": step,
            "tokens_per_second": self.tokens as f64 / step.max(1e-12),
            "bandwidth_bytes_per_second": self.bandwidth,
            "calls": (0..program.calls.len()).map(call).collect::<Vec<_>>(),
        })
    }
}
