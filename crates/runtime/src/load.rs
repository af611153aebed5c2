//! From an open model to an engine that runs it. The only place that configures engines.

use mambo_engine::{Engine, EngineConfig, PrefixCacheConfig, Progress, SnapshotRoom};
use mambo_kernel::{Backend, KvElem, KvTypes, MemoryBudget, StateElem, WeightSource, WeightUse};
use mambo_model::{BoundWeight, ModelSpec, Part};
use mambo_tensor::DType;

use crate::model::{BoundWeights, Graphs};
use crate::{Model, RuntimeError};

/// Context of an engine if neither the caller nor the model says otherwise.
pub const DEFAULT_CONTEXT: usize = 8192;
/// Most prompt tokens of one step, unless the caller says otherwise.
pub const DEFAULT_STEP_TOKENS: usize = 512;
/// Sequences at once that can be asked for.
const MAX_SEQUENCES: usize = 1 << 20;
/// No machine has more memory.
const MAX_CACHE_BYTES: u128 = 1 << 50;

/// What an engine is wanted for.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Sequences at once.
    pub sequences: usize,
    /// Most tokens of a sequence, prompt and answer together; by default as much of the model's own as is usual.
    pub context_tokens: Option<usize>,
    /// Tokens a sequence must be able to hold, whatever the default is.
    pub at_least_tokens: usize,
    /// Most tokens of one step; longer prompts are cut.
    pub step_tokens: usize,
    /// Types of cached keys and values; by default f32 where the weights are f32, otherwise f16.
    pub kv_types: Option<KvTypes>,
    /// Type of recurrent states.
    pub state_elem: StateElem,
    /// Whether the MTP head is loaded too, where the model has one.
    pub mtp: bool,
    /// Snapshots that will be kept.
    pub snapshots: SnapshotRoom,
    /// Prompts that were read are kept for those that start alike; none reads every prompt.
    pub prefix_cache: Option<PrefixCacheConfig>,
    /// Whether requests may ask for embeddings.
    pub embeddings: bool,
    /// Whether the experts that are chosen can be counted.
    pub expert_counts: bool,
    /// Memory that may be used; by default what the backend says is free. Nothing is checked if it is unknown.
    pub memory: Option<MemoryBudget>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            sequences: 1,
            context_tokens: None,
            at_least_tokens: 0,
            step_tokens: DEFAULT_STEP_TOKENS,
            kv_types: None,
            state_elem: StateElem::F32,
            mtp: false,
            snapshots: SnapshotRoom::default(),
            prefix_cache: None,
            embeddings: false,
            expert_counts: false,
            memory: None,
        }
    }
}

/// What happens while a model loads.
#[derive(Clone, Debug)]
pub enum LoadEvent {
    /// Something about the weights that a user should know.
    Note(String),
    /// Weights are read.
    Progress {
        /// Bytes taken in.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
}

impl LoadOptions {
    /// The same with caches in f32.
    pub fn exact(self) -> LoadOptions {
        let kv_types = Some(KvTypes::both(KvElem::F32));
        LoadOptions { kv_types, state_elem: StateElem::F32, ..self }
    }

    /// The tokens a sequence of this model can hold.
    pub fn context_for(&self, spec: &ModelSpec) -> Result<usize, RuntimeError> {
        let usual = DEFAULT_CONTEXT.min(spec.context.unwrap_or(DEFAULT_CONTEXT));
        let context = self.context_tokens.unwrap_or(usual.max(self.at_least_tokens));
        match context {
            0 => Err(RuntimeError::NoContext),
            tokens if tokens > ModelSpec::MAX_CONTEXT => {
                Err(RuntimeError::ContextTooLong { tokens, most: ModelSpec::MAX_CONTEXT })
            }
            tokens => Ok(tokens),
        }
    }

    /// The types of keys and values for a model whose embedding is stored like this.
    pub fn kv_types_for(&self, embedding: Option<DType>) -> KvTypes {
        let usual = if embedding == Some(DType::F32) { KvElem::F32 } else { KvElem::F16 };
        self.kv_types.unwrap_or(KvTypes::both(usual))
    }

    /// The engine's configuration for a model.
    pub(crate) fn engine_config(
        &self,
        spec: &ModelSpec,
        weights: &BoundWeights,
    ) -> Result<EngineConfig, RuntimeError> {
        let (sequences, context) = (self.sequences, self.context_for(spec)?);
        if sequences > MAX_SEQUENCES {
            return Err(RuntimeError::TooManySequences { sequences, most: MAX_SEQUENCES });
        }
        if self.step_tokens == 0 {
            return Err(RuntimeError::NoStepTokens);
        }
        check_cache_size(spec, sequences, context)?;
        Ok(EngineConfig {
            max_sequences: sequences,
            context_tokens: context,
            // No step is longer than all there can be; a plan for more would only take memory.
            step_tokens: self.step_tokens.min(context * sequences),
            kv_types: self.kv_types_for(weights.get("embed").map(|w| w.dtype())),
            state_elem: self.state_elem,
            snapshots: self.snapshots,
            prefix_cache: self.prefix_cache,
            embeddings: self.embeddings,
            expert_counts: self.expert_counts,
            memory: self.memory,
            ..EngineConfig::default()
        })
    }
}

/// Refuses caches so large that counting their bytes would wrap, long before memory is asked for.
fn check_cache_size(spec: &ModelSpec, sequences: usize, context: usize) -> Result<(), RuntimeError> {
    let per_token: usize = spec.cache_layers().kv_layers.iter().map(|a| 8 * a.kv_heads * a.head_dim).sum();
    let bytes = per_token as u128 * sequences as u128 * context as u128;
    if bytes > MAX_CACHE_BYTES {
        return Err(RuntimeError::CacheTooLarge { sequences, context });
    }
    Ok(())
}

/// Refuses norms, biases and routers that are not numbers. Kernels that round activations to integers, and those that
/// choose experts, hide such values from the logits; what they leave looks like a result. Large weights are not read
/// twice for it.
fn check_small_weights(weights: &BoundWeights) -> Result<(), RuntimeError> {
    weights.iter().filter(|weight| is_small(weight)).try_for_each(|weight| Ok(weight.check_finite()?))
}

/// Whether a weight is a norm, a bias or a router.
pub(crate) fn is_small(weight: &BoundWeight) -> bool {
    weight.usage() == WeightUse::Vector || weight.role() == Part::Router
}

impl Model {
    /// Plans, checks that everything fits, and loads the weights into the backend.
    pub fn load(
        &self,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        on_event: &mut dyn FnMut(LoadEvent),
    ) -> Result<Engine, RuntimeError> {
        self.load_graphs(&self.graphs(options.mtp)?, backend, options, on_event)
    }

    /// The same with these graphs of the model, such as ones with more outputs.
    pub fn load_graphs(
        &self,
        graphs: &Graphs,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        on_event: &mut dyn FnMut(LoadEvent),
    ) -> Result<Engine, RuntimeError> {
        let weights = self.weights()?;
        check_small_weights(&weights)?;
        weights.notes().into_iter().for_each(|note| on_event(LoadEvent::Note(note)));
        let config = options.engine_config(&self.spec, &weights)?;
        let parts = graphs.parts(&self.spec);
        let mut progress = |Progress { done, total }| on_event(LoadEvent::Progress { done, total });
        let engine = Engine::load(backend, &parts, &weights, config, &mut progress);
        engine.map_err(|source| RuntimeError::Load { model: self.name().to_owned(), source })
    }
}
