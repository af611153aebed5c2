//! Snapshots on disk: sessions that clients name, and a second tier of the prefix cache. Both are found by the tokens of
//! a prompt, read away from the engine's thread, and adopted by its prefix cache.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use mambo_engine::{Fingerprint, Snapshot, SpilledPrefix};
use mambo_runtime::{RuntimeError, SnapshotFile, SnapshotFolder, name_of, read_snapshot, write_snapshot};

use crate::background;
use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::service::Service;

/// Snapshots that wait to be written; more are dropped.
const WAITING: usize = 4;
/// Fewer tokens are run sooner than read from disk.
const WORTH_READING: usize = 64;

/// A folder that several threads use; the lock is held for the index alone, not while files are read or written.
#[derive(Clone, Debug)]
pub(crate) struct Folder(Arc<Mutex<SnapshotFolder>>);

impl Folder {
    fn open(path: &Path, model: Fingerprint) -> Result<Folder, RuntimeError> {
        let (folder, notes) = SnapshotFolder::open(path, model)?;
        for note in notes {
            tracing::warn!("passed over {note}");
        }
        Ok(Folder(Arc::new(Mutex::new(folder))))
    }

    pub fn lock(&self) -> MutexGuard<'_, SnapshotFolder> {
        // A panic while the lock was held cannot have left more than a file unlisted.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads a snapshot; one that is damaged is not found again.
    pub fn read(&self, name: &str) -> Result<Snapshot, RuntimeError> {
        let path = self.lock().path(name);
        let read = read_snapshot(&path);
        match &read {
            Ok(_) => self.lock().note_used(name),
            Err(_) => self.lock().forget(name),
        }
        read
    }

    /// Writes a snapshot, under a name that was checked.
    pub fn write(&self, name: &str, tokens: &[u32], bytes: &[u8]) -> Result<(), RuntimeError> {
        let path = self.lock().path(name);
        write_snapshot(&path, bytes)?;
        self.lock().note_written(name, tokens, bytes.len() as u64);
        Ok(())
    }
}

/// What a server keeps on disk.
#[derive(Default)]
pub(crate) struct Disk {
    /// Snapshots that clients have named, kept until they are removed.
    pub sessions: Option<Folder>,
    /// What the prefix cache has dropped.
    cache: Option<Folder>,
    /// Held while a snapshot is read, so that prompts that start alike read it once.
    recalling: tokio::sync::Mutex<()>,
}

/// Where the worker sends what the prefix cache drops.
pub(crate) type Spill = SyncSender<SpilledPrefix>;

/// A thread that writes what is sent to it, until the sender is dropped.
pub(crate) struct Writer {
    pub spill: Spill,
    pub thread: JoinHandle<()>,
}

impl Disk {
    /// Opens what the configuration names, and starts a thread that writes what is sent to it.
    pub fn open(config: &ServerConfig, model: Fingerprint) -> Result<(Disk, Option<Writer>), RuntimeError> {
        let folder = |path: &Path| Folder::open(path, model);
        let sessions = config.sessions.as_deref().map(folder).transpose()?;
        let Some((path, budget)) = &config.disk_cache else {
            return Ok((Disk { sessions, ..Disk::default() }, None));
        };
        let cache = folder(path)?;
        let (spill, spilled) = sync_channel(WAITING);
        let (written, budget) = (cache.clone(), *budget);
        let write = move || write_spilled(&written, model, budget, &spilled);
        let unusable = |source| RuntimeError::Unusable { path: path.clone(), source };
        let writer = background::spawn("disk", write).map_err(unusable)?;
        let disk = Disk { sessions, cache: Some(cache), ..Disk::default() };
        Ok((disk, Some(Writer { spill, thread: writer })))
    }

    /// The file that restores most of a prompt, if it restores so many tokens.
    fn find(&self, prompt: &[u32], longer_than: usize) -> Option<(Folder, SnapshotFile)> {
        let folders = [&self.sessions, &self.cache].into_iter().flatten();
        let found =
            folders.filter_map(|folder| Some((folder, folder.lock().find(prompt, longer_than)?.clone())));
        found.max_by_key(|(_, file)| file.tokens).map(|(folder, file)| (folder.clone(), file))
    }
}

fn write_spilled(folder: &Folder, model: Fingerprint, budget: u64, spilled: &Receiver<SpilledPrefix>) {
    for SpilledPrefix { tokens, bytes } in spilled {
        if folder.lock().holds(&tokens) || !folder.lock().make_room(bytes.len() as u64, budget) {
            continue;
        }
        match folder.write(&name_of(model, &tokens), &tokens, &bytes) {
            Ok(()) => tracing::debug!(tokens = tokens.len(), bytes = bytes.len(), "prefix written to disk"),
            Err(error) => tracing::warn!("the disk cache cannot keep a prefix: {error}"),
        }
    }
}

impl Service {
    /// Brings what the disk holds of a prompt's beginning into the prefix cache, where that is more than is there.
    pub async fn recall(&self, prompt: &[u32]) {
        if self.disk.find(prompt, WORTH_READING).is_none() {
            return;
        }
        let _one_at_a_time = self.disk.recalling.lock().await;
        let asked = prompt.to_vec();
        let Some(reuse) = self.worker.ask(move |engine| engine.reusable(&asked)).await else { return };
        let Some((folder, file)) = self.disk.find(prompt, reuse.tokens + WORTH_READING) else { return };
        let name = file.name.clone();
        let read = tokio::task::spawn_blocking(move || folder.read(&file.name)).await;
        let snapshot = match read {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => return tracing::warn!("not restored: {error}"),
            Err(_) => return,
        };
        // Prompts of equal digests find each other's files.
        if snapshot.begins(prompt)
            && let Some(Err(error)) = self.worker.ask(move |engine| engine.adopt(snapshot)).await
        {
            tracing::warn!("{name} is not restored: {error}");
        }
    }

    /// Brings a session into the prefix cache.
    pub async fn load_session(&self, folder: &Folder, name: &str) -> Result<usize, ApiError> {
        let (folder, owned) = (folder.clone(), name.to_owned());
        let read = tokio::task::spawn_blocking(move || folder.read(&owned)).await;
        let snapshot = read.map_err(|_| ApiError::internal("reading the session failed"))??;
        let tokens = snapshot.tokens().len();
        let adopted = self.worker.ask(move |engine| engine.adopt(snapshot)).await;
        adopted.ok_or_else(ApiError::stopping)?.map_err(|error| ApiError::conflict(error.to_string()))?;
        Ok(tokens)
    }
}
