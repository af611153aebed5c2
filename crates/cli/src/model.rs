//! From `-m MODEL` to everything a command needs: checkpoint, description, tokenizer, template, engine.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use mambo_checkpoint::{Checkpoint, GgufMetadata, Metadata};
use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_engine::{Engine, EngineConfig, ModelGraphs, Progress, SamplingParams, SnapshotRoom, Weights};
use mambo_graph::Graph;
use mambo_kernel::{Backend, KvScale, Rollback, WeightSource};
use mambo_model::{BuildOptions, ModelSpec, WeightTable, bind, describe};
use mambo_tensor::DType;
use mambo_text::{ChatTemplate, GgufVocabulary, Tokenizer};

use crate::args::ModelArgs;
use crate::progress::ByteBar;
use crate::{builtin, environment, machine};

/// Context of a run if neither a flag nor the model says otherwise.
pub const DEFAULT_CONTEXT: usize = 8192;
/// Sequences at once that can be asked for.
const MAX_SEQUENCES: usize = 1 << 20;
/// No machine has more memory.
const MAX_CACHE_BYTES: u128 = 1 << 50;

/// An open model that has loaded nothing yet.
pub struct Model {
    /// Files or bytes.
    pub checkpoint: Checkpoint,
    /// Layers and sizes.
    pub spec: ModelSpec,
}

/// What an engine is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct EngineUse {
    /// Sequences at once.
    pub sequences: usize,
    /// Whether the MTP head is loaded too.
    pub mtp: bool,
    /// Tokens a sequence must be able to hold, whatever the default is.
    pub at_least_tokens: usize,
    /// Run on the plain reference backend.
    pub reference: bool,
    /// Snapshots that will be kept.
    pub snapshots: SnapshotRoom,
}

impl Default for EngineUse {
    fn default() -> Self {
        EngineUse {
            sequences: 1,
            mtp: false,
            at_least_tokens: 0,
            reference: false,
            snapshots: SnapshotRoom::default(),
        }
    }
}

/// The bound weights as the engine asks for them.
pub struct BoundWeights<'c>(pub WeightTable<'c>);

impl Weights for BoundWeights<'_> {
    fn weight(&self, name: &str) -> Option<&dyn WeightSource> {
        self.0.get(name).map(|weight| weight as &dyn WeightSource)
    }

    fn kv_scales(&self) -> &[KvScale] {
        self.0.kv_scales()
    }
}

/// The graphs of a model.
pub struct Graphs {
    /// Tokens to logits.
    pub trunk: Graph,
    /// The trunk with hidden rows, and the MTP head.
    pub mtp: Option<(Graph, Graph)>,
}

impl Model {
    /// Opens the model the flags name, or the built-in one.
    pub fn open(args: &ModelArgs) -> Result<Model> {
        Self::open_with(args.model.as_deref(), Checkpoint::open)
    }

    /// The same, content with metadata where weights are missing.
    pub fn open_metadata(model: Option<&str>) -> Result<Model> {
        Self::open_with(model, Checkpoint::open_metadata)
    }

    fn open_with<E>(model: Option<&str>, open: impl Fn(&Path) -> Result<Checkpoint, E>) -> Result<Model>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let checkpoint = Self::files(model, open)?;
        let spec = describe(&checkpoint)?;
        Ok(Model { checkpoint, spec })
    }

    /// The files alone, whatever model is in them.
    pub fn files<E>(model: Option<&str>, open: impl Fn(&Path) -> Result<Checkpoint, E>) -> Result<Checkpoint>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        Ok(match model {
            None => Checkpoint::from_bytes(builtin::NAME, builtin::BYTES)?,
            Some(name) => open(&resolve(name)?)?,
        })
    }

    /// What messages call the model.
    pub fn name(&self) -> &str {
        self.checkpoint.source()
    }

    /// Finds every weight.
    pub fn weights(&self) -> Result<BoundWeights<'_>> {
        Ok(BoundWeights(bind(&self.checkpoint, &self.spec)?))
    }

    /// The graphs, with the MTP head's if it is wanted and there.
    pub fn graphs(&self, mtp: bool) -> Result<Graphs> {
        let trunk = self.spec.trunk_graph(BuildOptions::default())?;
        let head = mtp && self.spec.mtp.is_some();
        let mtp = if head {
            Some((self.spec.trunk_graph(BuildOptions { hidden: true })?, self.spec.mtp_graph()?))
        } else {
            None
        };
        Ok(Graphs { trunk, mtp })
    }

    /// The configuration the flags ask for.
    pub fn engine_config(
        &self,
        args: &ModelArgs,
        usage: EngineUse,
        weights: &BoundWeights,
    ) -> Result<EngineConfig> {
        let context = context_tokens(args, &self.spec, usage.at_least_tokens)?;
        let sequences = usage.sequences;
        if sequences > MAX_SEQUENCES {
            bail!("{sequences} sequences at once are more than the {MAX_SEQUENCES} this engine allows");
        }
        if args.chunk == 0 {
            bail!("--chunk is 0; a step needs at least one token");
        }
        check_cache_size(&self.spec, sequences, context)?;
        let is_f32 = weights.0.get("embed").is_some_and(|w| w.dtype() == DType::F32);
        Ok(EngineConfig {
            max_sequences: sequences,
            context_tokens: context,
            // No step is longer than all there can be; a plan for more would only take memory.
            step_tokens: args.chunk.min(context * sequences),
            kv_types: args.cache.kv_types(is_f32),
            state_elem: args.cache.state_type,
            rollback: Rollback::None,
            snapshots: usage.snapshots,
            memory_bytes: machine::available_memory(),
        })
    }

    /// Loads everything, with a progress bar if a person is watching.
    pub fn engine(&self, args: &ModelArgs, usage: EngineUse) -> Result<Engine> {
        self.engine_of(&self.graphs(usage.mtp)?, args, usage)
    }

    /// The same with these graphs of the model.
    pub fn engine_of(&self, graphs: &Graphs, args: &ModelArgs, usage: EngineUse) -> Result<Engine> {
        let weights = self.weights()?;
        weights.0.notes().iter().for_each(|note| eprintln!("note: {note}"));
        let config = self.engine_config(args, usage, &weights)?;
        let backend =
            if usage.reference { Box::new(mambo_kernel::ReferenceBackend::new()) } else { backend(args)? };
        let bar = ByteBar::new("loading", 0);
        let mut progress = |p: Progress| bar.at(p.done, p.total);
        let parts = graphs.parts(&self.spec);
        let engine = Engine::load(backend, &parts, &weights, config, &mut progress);
        bar.done();
        // Scales are only looked at while weights are read; a bad one is named here, tensor and all.
        weights.0.check_read_parts()?;
        engine.with_context(|| format!("cannot load {}", self.name()))
    }

    /// The tokenizer beside or inside the weights.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match self.checkpoint.metadata() {
            Metadata::Gguf(metadata) => Ok(Tokenizer::from_gguf(&gguf_vocabulary(metadata)?)?),
            Metadata::Config(files) => {
                let Some(json) = &files.tokenizer_json else {
                    bail!(
                        "{} has no tokenizer.json; put the model's tokenizer.json into the folder",
                        self.name()
                    );
                };
                let config = files.tokenizer_config.as_ref().map(ToString::to_string);
                Ok(Tokenizer::from_json(json, config.as_deref())?)
            }
        }
    }

    /// The chat template, or an error with the remedy.
    pub fn template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let source = match self.checkpoint.metadata() {
            Metadata::Gguf(metadata) => metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            Metadata::Config(files) => files.chat_template.clone(),
        };
        let text = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id], false));
        let template = ChatTemplate::require(self.name(), source.as_deref())?.with_clock(unix_time_s);
        Ok(template.with_tokens(text(tokenizer.bos()).as_deref(), text(tokenizer.eos()).as_deref()))
    }

    /// Every token that ends an answer: from the metadata and by the names the family uses.
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut stops = self.spec.stop_tokens.clone();
        stops.extend(tokenizer.eos());
        stops.extend(self.spec.stop_names().iter().filter_map(|name| tokenizer.id_of(name)));
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    /// The sampling the model's authors recommend; greedy where they say nothing.
    pub fn sampling_defaults(&self) -> SamplingParams {
        let mut params = SamplingParams::default();
        match self.checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let number = |key: &str| metadata.f32(key).ok().flatten();
                params.temperature = number("general.sampling.temp").unwrap_or(params.temperature);
                params.top_p = number("general.sampling.top_p").unwrap_or(params.top_p);
            }
            Metadata::Config(files) => {
                let number =
                    |key: &str| files.generation_config.as_ref()?.get(key)?.as_f64().map(|v| v as f32);
                let samples = files.generation_config.as_ref().and_then(|c| c.get("do_sample")?.as_bool());
                if samples == Some(true) {
                    params.temperature = number("temperature").unwrap_or(1.0);
                    params.top_p = number("top_p").unwrap_or(params.top_p);
                    params.top_k = number("top_k").map_or(params.top_k, |k| k as usize);
                }
            }
        }
        params
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

/// The backend the flags ask for.
pub fn backend(args: &ModelArgs) -> Result<Box<dyn Backend>> {
    if args.threads == Some(0) {
        bail!("--threads is 0; use 1 or more");
    }
    Ok(Box::new(CpuBackend::new(CpuOptions { threads: args.threads.unwrap_or(0), ..CpuOptions::default() })?))
}

/// The context the flags ask for, or as much of the model's own as is usual.
pub fn context_tokens(args: &ModelArgs, spec: &ModelSpec, at_least: usize) -> Result<usize> {
    let usual = DEFAULT_CONTEXT.min(spec.context.unwrap_or(DEFAULT_CONTEXT));
    let context = args.context.unwrap_or(usual.max(at_least));
    if context == 0 {
        bail!("--context is 0; it must hold at least one token");
    }
    if context > ModelSpec::MAX_CONTEXT {
        bail!("a context of {context} tokens is more than the {} this engine allows", ModelSpec::MAX_CONTEXT);
    }
    Ok(context)
}

/// Refuses caches so large that counting their bytes would wrap, long before memory is asked for.
fn check_cache_size(spec: &ModelSpec, sequences: usize, context: usize) -> Result<()> {
    let per_token: usize = spec.cache_layers().kv_layers.iter().map(|a| 8 * a.kv_heads * a.head_dim).sum();
    let bytes = per_token as u128 * sequences as u128 * context as u128;
    if bytes > MAX_CACHE_BYTES {
        bail!(
            "the KV cache of {sequences} x {context} tokens takes more memory than any machine has; lower --context"
        );
    }
    Ok(())
}

/// A path as it is, or a hub id in the local cache.
fn resolve(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    let parts: Vec<&str> = name.split('/').collect();
    if path.exists() || parts.len() != 2 || name.starts_with(['.', '/', '~']) {
        return Ok(path);
    }
    let folder =
        environment::hub_cache().map(|cache| cache.join(format!("models--{}--{}", parts[0], parts[1])));
    match folder.and_then(|folder| snapshot(&folder)) {
        Some(path) => Ok(path),
        None => bail!(
            "there is no file or folder `{name}`, and no model of that id in the local hub cache; download it first or give a path"
        ),
    }
}

/// The snapshot of a cached model that its main branch names, else the newest.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let main = std::fs::read_to_string(folder.join("refs").join("main")).ok();
    // A name with anything else in it would lead out of the cache.
    let named = main.as_deref().map(str::trim).filter(|m| m.chars().all(|c| c.is_ascii_hexdigit()));
    if let Some(path) = named.filter(|m| !m.is_empty()).map(|m| snapshots.join(m)).filter(|p| p.is_dir()) {
        return Some(path);
    }
    let all = std::fs::read_dir(snapshots).ok()?.flatten();
    let newest = all.max_by_key(|e| e.metadata().and_then(|m| m.modified()).ok());
    newest.map(|entry| entry.path())
}

/// The vocabulary of a GGUF file as the tokenizer takes it.
fn gguf_vocabulary(metadata: &GgufMetadata) -> Result<GgufVocabulary> {
    let strings =
        |key: &str| -> Result<Vec<String>> { Ok(metadata.strings(key)?.unwrap_or_default().to_vec()) };
    let text = |key: &str| -> Result<String> { Ok(metadata.str(key)?.unwrap_or_default().to_owned()) };
    let types = metadata.i64s("tokenizer.ggml.token_type")?.unwrap_or_default();
    Ok(GgufVocabulary {
        model: text("tokenizer.ggml.model")?,
        pre: text("tokenizer.ggml.pre")?,
        tokens: strings("tokenizer.ggml.tokens")?,
        token_types: types.into_iter().map(|t| t as i32).collect(),
        merges: strings("tokenizer.ggml.merges")?,
        bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
        eos: metadata.u32("tokenizer.ggml.eos_token_id")?,
        unk: metadata.u32("tokenizer.ggml.unknown_token_id")?,
        pad: metadata.u32("tokenizer.ggml.padding_token_id")?,
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
    })
}

/// The system clock, for templates that tell the date.
fn unix_time_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |elapsed| i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_branch_names_the_snapshot() {
        let folder = std::env::temp_dir().join(format!("mambo-hub-{}", std::process::id()));
        let snapshots = folder.join("snapshots");
        for name in ["aa11", "bb22"] {
            std::fs::create_dir_all(snapshots.join(name)).unwrap();
        }
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        for name in ["aa11", "bb22"] {
            std::fs::write(folder.join("refs/main"), format!("{name}\n")).unwrap();
            assert_eq!(snapshot(&folder), Some(snapshots.join(name)));
        }
        for odd in ["", "../..", "cc33"] {
            std::fs::write(folder.join("refs/main"), odd).unwrap();
            let found = snapshot(&folder).unwrap();
            assert_eq!(found.parent(), Some(&*snapshots), "{odd}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
