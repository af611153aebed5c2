//! From graphs and weights to an engine: passes, plans, memory check, weights into the backend.

use std::collections::HashSet;

use mambo_graph::Graph;
use mambo_graph::passes::{PassContext, PassReport, run_passes};
use mambo_kernel::{
    Backend, CacheLayout, KvScale, KvTypes, Phase, Program, ProgramId, Rollback, StateElem, WeightSource,
};
use mambo_plan::{Kernels, LowerOptions, lower};
use mambo_tensor::DType;

use crate::error::EngineError;
use crate::memory::{cache_layout, check_memory, source_bytes};

/// What an engine is set up for; one place for every knob.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences that may run at once.
    pub max_sequences: usize,
    /// Most tokens of one sequence, prompt and answer together.
    pub context_tokens: usize,
    /// Most tokens of one step; prompts are cut into chunks of this.
    pub step_tokens: usize,
    /// Element types of cached keys and values.
    pub kv_types: KvTypes,
    /// Element type of recurrent states.
    pub state_elem: StateElem,
    /// How far sequences roll back without a snapshot.
    pub rollback: Rollback,
    /// Snapshots that will be kept beside the caches.
    pub snapshots: SnapshotRoom,
    /// Memory that may be used, if known.
    pub memory_bytes: Option<u64>,
}

/// How many snapshots are kept at once, and the tokens that all of them hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRoom {
    /// Snapshots.
    pub count: usize,
    /// Tokens.
    pub tokens: usize,
}

/// Rows of a scoring step: every row's logits are wanted there, and a row of logits is large.
pub const SCORE_TOKENS: usize = 64;

/// The graphs of one model.
#[derive(Clone, Copy)]
pub struct ModelGraphs<'a> {
    /// Tokens to logits.
    pub trunk: &'a Graph,
    /// The trunk with its hidden rows as an output, and the MTP head that reads them.
    pub mtp: Option<(&'a Graph, &'a Graph)>,
    /// Length the model was trained on.
    pub trained_context: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
}

/// Where weights come from, by canonical name.
pub trait Weights {
    /// The weight, or nothing if the checkpoint does not bind it.
    fn weight(&self, name: &str) -> Option<&dyn WeightSource>;
    /// Scales for keys and values as 8-bit floats, by attention layer, the MTP head's last.
    fn kv_scales(&self) -> &[KvScale];
}

/// How far loading has got, in bytes of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes taken in.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The programs of a loaded model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    pub prefill: ProgramId,
    pub decode: ProgramId,
    pub score: ProgramId,
    pub mtp: Option<ProgramId>,
}

/// Runs the passes and lowers one graph for one phase; `phase` decides which fusions are offered.
pub fn plan(
    graph: &Graph,
    backend: &dyn Backend,
    phase: Phase,
    max_tokens: usize,
    max_wanted: usize,
    weight_type: &dyn Fn(&str) -> Option<DType>,
) -> Result<Program, EngineError> {
    let graph = optimise(graph, backend, phase, weight_type, &mut |_| {})?;
    let options = LowerOptions { name: &graph.name, phase, max_tokens, max_wanted, weight_type };
    Ok(lower(&graph, &Kernels::of(backend), &options)?)
}

/// The passes alone; `observer` sees the graph after each.
pub fn optimise(
    graph: &Graph,
    backend: &dyn Backend,
    phase: Phase,
    weight_type: &dyn Fn(&str) -> Option<DType>,
    observer: &mut dyn FnMut(PassReport),
) -> Result<Graph, EngineError> {
    let kernels = Kernels::of(backend);
    let offers = |op: &mambo_kernel::Op| kernels.offers(op, phase, graph, weight_type);
    Ok(run_passes(graph, &PassContext { phase, offers: &offers }, observer)?)
}

/// Lowers the programs, checks that everything fits, loads weights, allocates caches.
pub(crate) fn load(
    backend: &mut dyn Backend,
    graphs: &ModelGraphs,
    weights: &dyn Weights,
    config: &EngineConfig,
    progress: &mut dyn FnMut(Progress),
) -> Result<Programs, EngineError> {
    let weight_type = |name: &str| weights.weight(name).map(|w| w.dtype());
    let sequences = config.max_sequences;
    let score_graph = graphs.mtp.map_or(graphs.trunk, |(with_hidden, _)| with_hidden);
    let mut wanted = vec![
        (graphs.trunk, Phase::Prefill, config.step_tokens, sequences),
        (graphs.trunk, Phase::Decode, sequences, sequences),
        (score_graph, Phase::Verify, SCORE_TOKENS, SCORE_TOKENS),
    ];
    wanted.extend(graphs.mtp.map(|(_, mtp)| (mtp, Phase::Verify, SCORE_TOKENS, SCORE_TOKENS)));
    let mut programs = Vec::new();
    for (graph, phase, tokens, rows) in wanted {
        programs.push(plan(graph, backend, phase, tokens, rows, &weight_type)?);
    }

    let layout = CacheLayout { kv_scales: weights.kv_scales().to_vec(), ..cache_layout(graphs, config) };
    check_memory(&programs, &layout, weights, config)?;
    load_weights(backend, &programs, weights, progress)?;
    backend.create_caches(&layout)?;
    let mut ids = programs.into_iter().map(|program| backend.compile(program));
    let mut next = || ids.next().expect("one handle per program");
    Ok(Programs {
        prefill: next()?,
        decode: next()?,
        score: next()?,
        mtp: graphs.mtp.map(|_| next()).transpose()?,
    })
}

/// Every weight once: the program and call that reads it first decides the kernel it is packed for.
pub(crate) fn weight_keys(programs: &[Program]) -> Vec<(usize, mambo_kernel::WeightKey, usize)> {
    let mut seen = HashSet::new();
    let mut keys = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        for call in &program.calls {
            for &weight in &call.weights {
                let key = &program.weights[weight];
                if seen.insert(key.clone()) {
                    keys.push((index, key.clone(), call.kernel));
                }
            }
        }
    }
    keys
}

fn load_weights(
    backend: &mut dyn Backend,
    programs: &[Program],
    weights: &dyn Weights,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), EngineError> {
    let keys = weight_keys(programs);
    let total = keys.iter().filter_map(|(_, key, _)| source_bytes(weights, &key.name)).sum();
    let mut done = 0;
    for (_, key, kernel) in keys {
        progress(Progress { done, total });
        let source = weights.weight(&key.name).ok_or_else(|| EngineError::MissingWeight(key.name.clone()))?;
        backend.load_weight(&key, kernel, source)?;
        done += source_bytes(weights, &key.name).unwrap_or(0);
    }
    progress(Progress { done: total, total });
    Ok(())
}
