//! From plans to an engine, a weight at a time: whoever fetches weights from afar fetches each before it is loaded, and a
//! browser does something else between two of them.

use std::collections::{BTreeMap, VecDeque};

use mambo_kernel::{Backend, CacheLayout, Program, WeightKey};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::experts::{Route, routes};
use crate::fingerprint::Fingerprint;
use crate::load::{
    EngineConfig, ModelGraphs, Programs, Progress, Weights, compile_all, plan_all, planned_caches,
    weight_keys,
};
use crate::memory::{check_memory, source_bytes};

/// What an engine is made of.
pub(crate) struct Loaded {
    pub backend: Box<dyn Backend>,
    pub config: EngineConfig,
    pub programs: Programs,
    pub layout: CacheLayout,
    pub fingerprint: Fingerprint,
    pub routes: Vec<Route>,
    pub trained_context: usize,
    pub vocab: usize,
}

/// An engine in the making: all is planned and found to fit, and weights are loaded one by one.
pub struct Loading {
    backend: Box<dyn Backend>,
    config: EngineConfig,
    programs: Vec<Program>,
    layout: CacheLayout,
    trained_context: usize,
    vocab: usize,
    /// What has yet to be loaded.
    keys: VecDeque<WeightKey>,
    /// Of the weights that were.
    digests: BTreeMap<String, u64>,
    progress: Progress,
}

impl Loading {
    /// Plans and checks that everything fits.
    pub fn begin(
        backend: Box<dyn Backend>,
        graphs: &ModelGraphs,
        weights: &dyn Weights,
        mut config: EngineConfig,
    ) -> Result<Loading, EngineError> {
        config.max_sequences = config.max_sequences.max(1);
        // Every sequence that decodes must find a row in every step.
        config.step_tokens = config.step_tokens.max(config.max_sequences);
        let programs = plan_all(&*backend, graphs, weights, &config)?;
        let layout = planned_caches(graphs, weights, &config)?;
        let budget = config.memory.map_or_else(|| backend.memory(), Ok)?;
        check_memory(&programs, &layout, weights, &config, budget)?;
        let keys: VecDeque<WeightKey> =
            weight_keys(&programs).into_iter().map(|(_, key)| key.clone()).collect();
        let total = keys.iter().filter_map(|key| source_bytes(weights, &key.name)).sum();
        Ok(Loading {
            backend,
            config,
            programs,
            layout,
            trained_context: graphs.trained_context,
            vocab: graphs.vocab,
            keys,
            digests: BTreeMap::new(),
            progress: Progress { done: 0, total },
        })
    }

    /// The weight that is loaded next, by its canonical name; none once all are there.
    pub fn next_weight(&self) -> Option<&str> {
        self.keys.front().map(|key| key.name.as_str())
    }

    /// What has been loaded.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Loads the next weight; says whether there was one.
    pub fn load_next(&mut self, weights: &dyn Weights) -> Result<bool, EngineError> {
        let Some(key) = self.keys.pop_front() else { return Ok(false) };
        let source = weights.weight(&key.name).ok_or_else(|| EngineError::MissingWeight(key.name.clone()))?;
        // While its bytes are there.
        self.digests.entry(key.name.clone()).or_insert_with(|| source.digest());
        self.backend.load_weight(&key, source)?;
        self.progress.done += source_bytes(weights, &key.name).unwrap_or(0);
        Ok(true)
    }

    /// Allocates caches and compiles the programs, once all weights are there.
    pub fn finish(mut self, weights: &dyn Weights) -> Result<Engine, EngineError> {
        assert!(self.keys.is_empty(), "{} weights have yet to be loaded", self.keys.len());
        self.backend.create_caches(&self.layout)?;
        let fingerprint = Fingerprint::of(weights, &self.digests);
        let routes = routes(&self.programs[0]);
        let programs = compile_all(&mut *self.backend, self.programs, &self.config)?;
        let Loading { backend, config, layout, trained_context, vocab, .. } = self;
        let loaded =
            Loaded { backend, config, programs, layout, fingerprint, routes, trained_context, vocab };
        Ok(Engine::new(loaded))
    }
}
