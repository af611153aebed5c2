//! A model that is loaded a weight at a time, for callers that have to fetch the bytes of each first.

use mambo_checkpoint::StoredRange;
use mambo_engine::{Engine, Progress};
use mambo_kernel::Backend;

use crate::load::is_small;
use crate::model::BoundWeights;
use crate::{LoadOptions, Model, RuntimeError};

/// An engine in the making. What is not numbers is refused when its weight is loaded.
pub struct Loading<'m> {
    model: &'m Model,
    weights: BoundWeights<'m>,
    engine: mambo_engine::Loading,
}

impl Model {
    /// Tensors of a few bytes, such as the factors of others: what finding the weights reads, beside the headers.
    pub fn factor_ranges(&self) -> Vec<StoredRange> {
        let small =
            self.checkpoint.tensors().filter(|tensor| (1..=FACTOR_BYTES).contains(&tensor.byte_len()));
        small.map(|tensor| tensor.place(0..tensor.byte_len())).collect()
    }

    /// Plans and checks that everything fits; [`Model::load`] does the rest as well.
    pub fn begin_loading(
        &self,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
    ) -> Result<Loading<'_>, RuntimeError> {
        let (weights, graphs) = (self.weights()?, self.graphs(options.mtp)?);
        let config = options.engine_config(&self.spec, &weights)?;
        let engine = mambo_engine::Loading::begin(backend, &graphs.parts(&self.spec), &weights, config);
        let engine = engine.map_err(|source| self.not_loaded(source))?;
        Ok(Loading { model: self, weights, engine })
    }

    fn not_loaded(&self, source: mambo_engine::EngineError) -> RuntimeError {
        RuntimeError::Load { model: self.name().to_owned(), source }
    }
}

impl Loading<'_> {
    /// What a user should know about how weights are held.
    pub fn notes(&self) -> Vec<String> {
        self.weights.notes()
    }

    /// What the next weight is read from, or nothing once all are there.
    pub fn next_ranges(&self) -> Option<Vec<StoredRange>> {
        let weight = self.weights.get(self.engine.next_weight()?);
        Some(weight.map(|weight| weight.stored_ranges()).unwrap_or_default())
    }

    /// Loads the next weight, whose bytes can be read by now.
    pub fn load_next(&mut self) -> Result<(), RuntimeError> {
        let weight = self.engine.next_weight().and_then(|name| self.weights.get(name));
        if let Some(weight) = weight.filter(|weight| is_small(weight)) {
            weight.check_finite()?;
        }
        let loaded = self.engine.load_next(&self.weights);
        loaded.map(|_| ()).map_err(|source| self.model.not_loaded(source))
    }

    /// Bytes that were loaded, and all.
    pub fn progress(&self) -> Progress {
        self.engine.progress()
    }

    /// The engine, once all weights are there.
    pub fn finish(self) -> Result<Engine, RuntimeError> {
        let Loading { model, weights, engine } = self;
        engine.finish(&weights).map_err(|source| model.not_loaded(source))
    }
}

/// Tensors up to here are factors.
const FACTOR_BYTES: u64 = 256;
