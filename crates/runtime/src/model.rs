//! An open model: files or bytes, their description, their weights by canonical name, their graphs. Loads nothing.

use std::ops::Deref;
#[cfg(any(unix, windows))]
use std::path::Path;

use mambo_checkpoint::Checkpoint;
use mambo_engine::{ModelGraphs, Weights};
use mambo_graph::Graph;
use mambo_kernel::{KvScale, WeightSource};
use mambo_model::{BuildOptions, ModelSpec, WeightTable, bind, describe};

use crate::load::DEFAULT_CONTEXT;
use crate::{ModelText, RuntimeError};

/// How a model is opened.
#[cfg(any(unix, windows))]
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Be content with metadata where weights are missing: enough to describe a model, not to load it.
    pub metadata_only: bool,
}

/// An open model that has loaded nothing yet.
pub struct Model {
    /// Files or bytes.
    pub checkpoint: Checkpoint,
    /// Layers and sizes.
    pub spec: ModelSpec,
}

/// The bound weights, as the engine asks for them.
pub struct BoundWeights<'c>(WeightTable<'c>);

/// The graphs of a model.
pub struct Graphs {
    /// Tokens to logits.
    pub trunk: Graph,
    /// The trunk with hidden rows, and the MTP head.
    pub mtp: Option<(Graph, Graph)>,
}

/// Opens files without asking which model is in them.
#[cfg(any(unix, windows))]
pub fn open_checkpoint(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Checkpoint, RuntimeError> {
    let open = if options.metadata_only { Checkpoint::open_metadata } else { Checkpoint::open };
    Ok(open(path.as_ref())?)
}

impl Model {
    /// Opens a folder or a `.gguf` file.
    #[cfg(any(unix, windows))]
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, RuntimeError> {
        Model::of(open_checkpoint(path, options)?)
    }

    /// Opens a file that is part of the program; `name` stands for the path in messages.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Model, RuntimeError> {
        Model::of(Checkpoint::from_bytes(name, bytes)?)
    }

    /// Describes the model in a checkpoint that is open already, wherever its bytes come from.
    pub fn of(checkpoint: Checkpoint) -> Result<Model, RuntimeError> {
        let spec = describe(&checkpoint)?;
        Ok(Model { checkpoint, spec })
    }

    /// What messages call the model.
    pub fn name(&self) -> &str {
        self.checkpoint.source()
    }

    /// Whether there are weights to load.
    pub fn has_weights(&self) -> bool {
        self.checkpoint.tensors().next().is_some()
    }

    /// Finds every weight.
    pub fn weights(&self) -> Result<BoundWeights<'_>, RuntimeError> {
        Ok(BoundWeights(bind(&self.checkpoint, &self.spec)?))
    }

    /// Finds every weight as files keep it, with the factors of its family where a GGUF file has them in its weights.
    pub fn stored_weights(&self, in_gguf: bool) -> Result<BoundWeights<'_>, RuntimeError> {
        let spec = match in_gguf {
            true => self.spec.with_stored_factors(),
            false => self.spec.clone(),
        };
        Ok(BoundWeights(bind(&self.checkpoint, &spec)?))
    }

    /// The graphs, with the MTP head's if it is wanted and there.
    pub fn graphs(&self, mtp: bool) -> Result<Graphs, RuntimeError> {
        let trunk = self.spec.trunk_graph(BuildOptions::default())?;
        let head = mtp && self.spec.mtp.is_some();
        let mtp = if head {
            Some((self.spec.trunk_graph(BuildOptions { hidden: true })?, self.spec.mtp_graph()?))
        } else {
            None
        };
        Ok(Graphs { trunk, mtp })
    }

    /// Everything on the text side of the model: tokenizer, chat template, stop tokens, recommended sampling.
    pub fn text(&self) -> Result<ModelText, RuntimeError> {
        ModelText::of(self)
    }
}

impl Graphs {
    /// The graphs as the engine takes them.
    pub fn parts(&self, spec: &ModelSpec) -> ModelGraphs<'_> {
        ModelGraphs {
            trunk: &self.trunk,
            mtp: self.mtp.as_ref().map(|(trunk, head)| (trunk, head)),
            trained_context: spec.context.unwrap_or(DEFAULT_CONTEXT),
            vocab: spec.vocab,
        }
    }
}

impl<'c> Deref for BoundWeights<'c> {
    type Target = WeightTable<'c>;

    fn deref(&self) -> &WeightTable<'c> {
        &self.0
    }
}

impl Weights for BoundWeights<'_> {
    fn weight(&self, name: &str) -> Option<&dyn WeightSource> {
        self.0.get(name).map(|weight| weight as &dyn WeightSource)
    }

    fn kv_scales(&self) -> &[KvScale] {
        self.0.kv_scales()
    }
}
