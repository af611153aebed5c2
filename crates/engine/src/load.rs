//! What an engine is made of before its weights are there: settings, passes, plans, caches.

use std::collections::HashSet;

use mambo_graph::Graph;
use mambo_graph::passes::{PassContext, PassReport, run_passes};
use mambo_kernel::{
    Backend, CacheLayout, CacheTypes, KvScale, KvTypes, MemoryBudget, OpKind, Phase, Program, ProgramId,
    Rollback, SSM_CHUNK, StateElem, WeightKey, WeightSource,
};
use mambo_plan::{Kernels, LowerOptions, lower};
use mambo_tensor::DType;

use crate::error::EngineError;
use crate::memory::cache_layout;
use crate::prefix::PrefixCacheConfig;

/// The settings of an engine.
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
    /// How far sequences roll back without a snapshot; slots grow with it.
    pub rollback: Rollback,
    /// Snapshots that will be kept beside the caches.
    pub snapshots: SnapshotRoom,
    /// Prompts that were read are kept for those that start alike; none reads every prompt.
    pub prefix_cache: Option<PrefixCacheConfig>,
    /// Whether every step also fills the MTP head's cache, for drafts.
    pub fill_mtp: bool,
    /// Whether requests may ask for embeddings.
    pub embeddings: bool,
    /// Whether the experts that are chosen can be counted.
    pub expert_counts: bool,
    /// Memory that may be used; none asks the backend.
    pub memory: Option<MemoryBudget>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_sequences: 1,
            context_tokens: 8192,
            step_tokens: 512,
            kv_types: KvTypes::default(),
            state_elem: StateElem::F32,
            rollback: Rollback::None,
            snapshots: SnapshotRoom::default(),
            prefix_cache: None,
            fill_mtp: false,
            embeddings: false,
            expert_counts: false,
            memory: None,
        }
    }
}

impl EngineConfig {
    /// Element types of the caches.
    pub fn cache_types(&self) -> CacheTypes {
        CacheTypes { kv: self.kv_types, state: self.state_elem }
    }

    /// Whether steps fill the cache of the MTP head.
    fn fills_mtp(&self, graphs: &ModelGraphs) -> bool {
        self.fill_mtp && graphs.mtp.is_some()
    }
}

/// How many snapshots are kept at once, and the tokens that all of them hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRoom {
    /// Snapshots.
    pub count: usize,
    /// Tokens.
    pub tokens: usize,
    /// Snapshots whose recurrent state stays in a slot of the backend, which copies it without the host; other states
    /// go to the host's memory.
    pub slots: usize,
}

/// Rows of a scoring step: every row's logits are wanted there, and a row of logits is large.
pub const SCORE_TOKENS: usize = 2 * SSM_CHUNK;

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

/// Progress of loading, in bytes of the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes loaded.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The programs of a loaded model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Programs {
    /// Prompts, beside sequences that decode.
    pub prefill: ProgramId,
    /// One token per sequence.
    pub decode: ProgramId,
    /// Every row's logits of segments of any length.
    pub score: ProgramId,
    /// The same of segments of up to a chunk.
    pub verify: ProgramId,
    /// The MTP head, over any rows.
    pub mtp: Option<ProgramId>,
    /// Output of `prefill` and `decode` that holds logits.
    pub logits: usize,
    /// Output of them that holds hidden rows, if the MTP head's cache is to be filled.
    pub hidden: Option<usize>,
    /// Output of them that holds the wanted hidden rows, if requests may ask for them.
    pub embedding: Option<usize>,
}

impl Programs {
    /// The MTP head and the output it reads, if its cache is to be filled.
    pub fn mtp_fill(&self) -> Option<(ProgramId, usize)> {
        self.mtp.zip(self.hidden)
    }
}

/// What a program is planned for.
#[derive(Clone, Copy)]
pub struct PlanOptions<'a> {
    /// What it is for; decides which fusions are offered.
    pub phase: Phase,
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// Most wanted rows of a step.
    pub max_wanted: usize,
    /// Element types of the caches.
    pub caches: CacheTypes,
    /// Stored element type of a weight by canonical name.
    pub weight_type: &'a dyn Fn(&str) -> Option<DType>,
}

/// Runs the passes and lowers one graph.
pub fn plan(graph: &Graph, backend: &dyn Backend, options: &PlanOptions) -> Result<Program, EngineError> {
    let graph = optimise(graph, backend, options, &mut |_| {})?;
    let &PlanOptions { phase, max_tokens, max_wanted, caches, weight_type } = options;
    let options = LowerOptions { name: &graph.name, phase, max_tokens, max_wanted, caches, weight_type };
    Ok(lower(&graph, &Kernels::of(backend), &options)?)
}

/// The passes alone; `observer` sees the graph after each.
pub fn optimise(
    graph: &Graph,
    backend: &dyn Backend,
    options: &PlanOptions,
    observer: &mut dyn FnMut(PassReport),
) -> Result<Graph, EngineError> {
    let kernels = Kernels::of(backend);
    let &PlanOptions { phase, caches, weight_type, .. } = options;
    let offers = |op: &mambo_kernel::Op| kernels.offers(op, phase, caches, graph, weight_type);
    Ok(run_passes(graph, &PassContext { phase, offers: &offers }, observer)?)
}

/// Name of the graphs' output that `choose` writes.
pub const TOKEN: &str = "token";

/// Label of the op in the graphs that takes the hidden rows of wanted tokens.
const WANTED: &str = "wanted";

/// Lowers the programs: of prompts, of answers, two of scoring, and the MTP head's.
pub(crate) fn plan_all(
    backend: &dyn Backend,
    graphs: &ModelGraphs,
    weights: &dyn Weights,
    config: &EngineConfig,
) -> Result<Vec<Program>, EngineError> {
    let weight_type = |name: &str| weights.weight(name).map(|w| w.dtype());
    let caches = config.cache_types();
    let planned = |graph: &Graph, phase: Phase, max_tokens: usize, max_wanted: usize| {
        let weight_type = &weight_type;
        plan(graph, backend, &PlanOptions { phase, max_tokens, max_wanted, caches, weight_type })
    };
    let sequences = config.max_sequences;
    let with_hidden = graphs.mtp.map_or(graphs.trunk, |(with_hidden, _)| with_hidden);
    let mut trunk = if config.fills_mtp(graphs) { with_hidden } else { graphs.trunk }.clone();
    // Both show values that are computed anyway, and cost nothing unless they are fetched.
    if config.embeddings {
        trunk = trunk.showing(OpKind::GatherRows);
    }
    if config.expert_counts {
        trunk = trunk.showing(OpKind::MoeRoute);
    }
    // Scoring chooses nothing.
    let score = with_hidden.without_output(TOKEN);
    let step_tokens = config.step_tokens;
    let mut programs = vec![
        planned(&trunk, Phase::Prefill, step_tokens, sequences)?,
        planned(&trunk, Phase::Decode, sequences, sequences)?,
        planned(&score, Phase::Prefill, SCORE_TOKENS, SCORE_TOKENS)?,
        planned(&score, Phase::Verify, SCORE_TOKENS, SCORE_TOKENS)?,
    ];
    if let Some((_, mtp)) = graphs.mtp {
        let (tokens, wanted) = (step_tokens.max(SCORE_TOKENS), sequences.max(SCORE_TOKENS));
        programs.push(planned(mtp, Phase::Prefill, tokens, wanted)?);
    }
    Ok(programs)
}

/// The caches of a model, which must be few enough to be numbered.
pub(crate) fn planned_caches(
    graphs: &ModelGraphs,
    weights: &dyn Weights,
    config: &EngineConfig,
) -> Result<CacheLayout, EngineError> {
    let layout = CacheLayout { kv_scales: weights.kv_scales().to_vec(), ..cache_layout(graphs, config) };
    let pages = layout.kv_groups.iter().map(|group| group.pages).max().unwrap_or(0);
    if u32::try_from(pages).is_err() {
        let (sequences, context) = (config.max_sequences, config.context_tokens);
        return Err(EngineError::TooManyPages { sequences, context, pages });
    }
    Ok(layout)
}

/// Compiles what [`plan_all`] gave, in its order.
pub(crate) fn compile_all(
    backend: &mut dyn Backend,
    programs: Vec<Program>,
    config: &EngineConfig,
) -> Result<Programs, EngineError> {
    let logits = programs[0].output("logits").expect("a trunk gives logits");
    let has_mtp = programs.len() > 4;
    let hidden = programs[0].output("hidden").filter(|_| config.fill_mtp && has_mtp);
    let embedding = programs[0].output(WANTED).filter(|_| config.embeddings);
    let mut ids = programs.into_iter().map(|program| backend.compile(program));
    let mut next = || ids.next().expect("one handle per program");
    Ok(Programs {
        prefill: next()?,
        decode: next()?,
        score: next()?,
        verify: next()?,
        mtp: has_mtp.then(next).transpose()?,
        logits,
        hidden,
        embedding,
    })
}

/// Every weight once in every form, with the program that reads it first.
pub(crate) fn weight_keys(programs: &[Program]) -> Vec<(usize, &WeightKey)> {
    let mut seen = HashSet::new();
    let keys =
        programs.iter().enumerate().flat_map(|(index, p)| p.weights.iter().map(move |key| (index, key)));
    keys.filter(|(_, key)| seen.insert(*key)).collect()
}
