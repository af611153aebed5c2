//! From files elsewhere to an engine, without waiting in the wrong place: what a reader misses is fetched, and it reads
//! again; then each weight is fetched and loaded in turn, so that no more than one is held twice.

use std::path::Path;

use mambo_checkpoint::{Checkpoint, ConfigFiles, MaybeShared, SourceFile, StoredRange};
use mambo_engine::{PrefixCacheConfig, SnapshotRoom};
use mambo_kernel::{Backend, BackendError, MemoryBudget};
use mambo_runtime::{LoadOptions, Model, model_view};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::remote_file::NotedFile;
use crate::{RemoteFile, Session, WebError};

/// How a model is loaded; all of it may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenSettings {
    /// Most tokens of a conversation.
    pub context_tokens: Option<usize>,
    /// Conversations at once.
    pub sequences: usize,
    /// Most prompt tokens of one step: the page hears of nothing during a step.
    pub step_tokens: usize,
    /// Bytes of memory for conversations that were read.
    pub prefix_cache_bytes: u64,
    /// Bytes of memory that may be used, where the backend cannot tell.
    pub memory_bytes: Option<u64>,
}

impl Default for OpenSettings {
    fn default() -> Self {
        OpenSettings {
            context_tokens: None,
            sequences: 1,
            step_tokens: 128,
            prefix_cache_bytes: 64 << 20,
            memory_bytes: None,
        }
    }
}

/// What happens while a model is opened.
#[derive(Clone, Debug)]
pub enum OpenEvent {
    /// Something a user should know.
    Note(String),
    /// Bytes of weights that were loaded, and all.
    Loaded(u64, u64),
}

/// Files whose headers have been read.
pub struct Opened<F> {
    model: Model,
    files: Vec<NotedFile<F>>,
}

/// Reads the headers of a model's files: all parts of a GGUF model, or all shards of safetensors weights with the texts
/// of the files beside them.
pub async fn open<F: RemoteFile + MaybeShared + 'static>(
    name: &str,
    files: Vec<F>,
    beside: Map<String, Value>,
) -> Result<Opened<F>, WebError> {
    let files: Vec<NotedFile<F>> = files.into_iter().map(NotedFile::new).collect();
    if files.is_empty() {
        return Err(WebError::NoFiles);
    }
    let beside = config_files(name, &beside)?;
    let model = fetching(&files, || {
        let sources = files.iter().map(|file| SourceFile::new(file.file.name(), file.clone())).collect();
        let checkpoint = Checkpoint::from_sources(name, beside.clone(), sources);
        Model::of(checkpoint.map_err(mambo_runtime::RuntimeError::from)?)
    })
    .await?;
    // Finding the weights reads these one by one, from all over the files.
    fetch_all(&files, &model.factor_ranges()).await?;
    fetching(&files, || model.weights().map(|_| ())).await?;
    Ok(Opened { model, files })
}

/// Bytes of weights that may be on their way to a device, whose copies the browser holds.
const UNSETTLED_BYTES: u64 = 64 << 20;
/// Snapshots that a device holds which nothing may wait for: the last turns of a conversation.
const SNAPSHOTS_ON_DEVICE: usize = 4;

/// Loads an opened model into a backend; `settled` waits until that has taken in what it was given.
pub async fn load<F: RemoteFile + MaybeShared + 'static>(
    opened: Opened<F>,
    backend: Box<dyn Backend>,
    settings: &OpenSettings,
    milliseconds: fn() -> f64,
    on_event: &mut dyn FnMut(OpenEvent),
    settled: impl AsyncFn() -> Result<(), BackendError>,
) -> Result<Session, WebError> {
    let Opened { model, files } = opened;
    let options = load_options(settings, backend.may_block());
    let mut loading = model.begin_loading(backend, &options)?;
    loading.notes().into_iter().for_each(|note| on_event(OpenEvent::Note(note)));
    let mut settled_at = 0;
    while let Some(ranges) = loading.next_ranges() {
        fetch_all(&files, &ranges).await?;
        loading.load_next()?;
        let progress = loading.progress();
        on_event(OpenEvent::Loaded(progress.done, progress.total));
        if progress.done - settled_at >= UNSETTLED_BYTES {
            settled_at = progress.done;
            settled().await?;
        }
    }
    let engine = loading.finish()?;
    settled().await?;
    // Its sizes are in the headers, and what finds them reads the factors once more.
    fetch_all(&files, &model.factor_ranges()).await?;
    let view = fetching(&files, || model_view(&model, &engine)).await?;
    Ok(Session::new(&model, engine, view, milliseconds))
}

fn load_options(settings: &OpenSettings, may_block: bool) -> LoadOptions {
    let prefix_cache = (settings.prefix_cache_bytes > 0).then_some(PrefixCacheConfig {
        bytes: settings.prefix_cache_bytes,
        every: None,
        spills: false,
    });
    let on_device = SnapshotRoom { count: SNAPSHOTS_ON_DEVICE, tokens: 0, slots: SNAPSHOTS_ON_DEVICE };
    // What may be waited for shares the memory of this module.
    let memory = settings.memory_bytes.map(|bytes| match may_block {
        true => MemoryBudget { host: Some(bytes), device: None },
        false => MemoryBudget { host: None, device: Some(bytes) },
    });
    LoadOptions {
        sequences: settings.sequences.max(1),
        context_tokens: settings.context_tokens,
        step_tokens: settings.step_tokens.max(1),
        prefix_cache,
        snapshots: if may_block { SnapshotRoom::default() } else { on_device },
        embeddings: true,
        expert_counts: true,
        memory,
        ..LoadOptions::default()
    }
}

/// Does something again until all that it reads is there.
async fn fetching<F: RemoteFile, T>(
    files: &[NotedFile<F>],
    mut attempt: impl FnMut() -> Result<T, mambo_runtime::RuntimeError>,
) -> Result<T, WebError> {
    loop {
        let problem = match attempt() {
            Ok(done) => return Ok(done),
            Err(problem) => problem,
        };
        let mut was_missing = false;
        for file in files {
            if let Some(range) = file.take_missing() {
                file.fetch(range).await?;
                was_missing = true;
            }
        }
        if !was_missing {
            return Err(problem.into());
        }
    }
}

async fn fetch_all<F: RemoteFile>(files: &[NotedFile<F>], ranges: &[StoredRange]) -> Result<(), WebError> {
    for StoredRange { file, bytes } in joined(ranges) {
        files[file].fetch(bytes).await?;
    }
    Ok(())
}

/// The same bytes in fewer ranges: neighbours are fetched together.
fn joined(ranges: &[StoredRange]) -> Vec<StoredRange> {
    let mut ranges: Vec<StoredRange> =
        ranges.iter().filter(|range| !range.bytes.is_empty()).cloned().collect();
    ranges.sort_by_key(|range| (range.file, range.bytes.start));
    let mut all: Vec<StoredRange> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if last.file == range.file && range.bytes.start <= last.bytes.end => {
                last.bytes.end = last.bytes.end.max(range.bytes.end);
            }
            _ => all.push(range),
        }
    }
    all
}

/// The files beside safetensors weights, from their texts by name; none for a GGUF file.
fn config_files(name: &str, texts: &Map<String, Value>) -> Result<ConfigFiles, WebError> {
    if texts.is_empty() {
        return Ok(ConfigFiles::default());
    }
    if let Some((file, _)) = texts.iter().find(|(_, text)| !text.is_string()) {
        return Err(WebError::Beside(format!("`{file}` is not a text")));
    }
    let text = |file: &str| Ok(texts.get(file).and_then(Value::as_str).map(str::to_owned));
    ConfigFiles::from_texts(Path::new(name), text).map_err(|error| WebError::Runtime(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_fetched_together() {
        let range = |file, bytes| StoredRange { file, bytes };
        let ranges = [range(1, 5..9), range(0, 10..20), range(0, 0..10), range(0, 30..30), range(0, 15..22)];
        assert_eq!(joined(&ranges), [range(0, 0..22), range(1, 5..9)]);
    }
}
