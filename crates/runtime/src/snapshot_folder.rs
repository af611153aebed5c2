//! Snapshots in files: one file each, complete or not at all, found again by the tokens that a prompt starts with.
//!
//! A folder may hold snapshots of several models and versions; those of others are left alone.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mambo_checkpoint::AtomicFile;
use mambo_engine::{Fingerprint, Snapshot, SnapshotHeader};
use mambo_kernel::Digest;

use crate::RuntimeError;

/// How the names of snapshot files end.
const EXTENSION: &str = "snapshot";
/// How the names of files end that were not finished.
const PARTIAL: &str = "partial";

/// Writes the portable form of a snapshot to a file, which appears complete or not at all.
pub fn write_snapshot(path: &Path, bytes: &[u8]) -> Result<(), RuntimeError> {
    let mut file = AtomicFile::create(path)?;
    file.write(bytes)?;
    Ok(file.finish()?)
}

/// Reads a snapshot and checks that it is whole; the engine that adopts or resumes it checks the model.
pub fn read_snapshot(path: &Path) -> Result<Snapshot, RuntimeError> {
    let bytes =
        fs::read(path).map_err(|source| RuntimeError::Unusable { path: path.to_path_buf(), source })?;
    Snapshot::from_bytes(&bytes).map_err(|source| RuntimeError::Snapshot { path: path.to_path_buf(), source })
}

/// A snapshot file of this model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its name without the ending.
    pub name: String,
    /// Tokens that ran.
    pub tokens: usize,
    /// Its size.
    pub bytes: u64,
    /// When it was written or last used.
    pub used: SystemTime,
}

/// An index over a folder of snapshots.
#[derive(Debug)]
pub struct SnapshotFolder {
    folder: PathBuf,
    model: Fingerprint,
    /// By number of tokens, then by their digest.
    files: BTreeMap<usize, HashMap<u64, SnapshotFile>>,
}

impl SnapshotFolder {
    /// Opens or makes a folder, removes what a crash left unfinished and lists the snapshots of a model. The second
    /// value says which files were passed over, and why.
    pub fn open(folder: &Path, model: Fingerprint) -> Result<(SnapshotFolder, Vec<String>), RuntimeError> {
        let failed = |source| RuntimeError::Unusable { path: folder.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut opened = SnapshotFolder { folder: folder.to_path_buf(), model, files: BTreeMap::new() };
        let mut notes = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(PARTIAL) if path.to_string_lossy().contains(".snapshot.") => _ = fs::remove_file(&path),
                Some(EXTENSION) => notes
                    .extend(opened.list(&path).err().map(|problem| format!("{}: {problem}", path.display()))),
                _ => {}
            }
        }
        Ok((opened, notes))
    }

    /// Adds a file to the index if it is of this model and whole as far as its length tells.
    fn list(&mut self, path: &Path) -> Result<(), String> {
        let name = path.file_stem().and_then(|name| name.to_str()).ok_or("its name is not text")?;
        let about = fs::metadata(path).map_err(|error| error.to_string())?;
        // Opening a pipe would wait for somebody who writes into it.
        if !about.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let mut file = File::open(path).map_err(|error| error.to_string())?;
        let mut header = [0; SnapshotHeader::BYTES];
        file.read_exact(&mut header).map_err(|_| "it is too short for a snapshot")?;
        let header = SnapshotHeader::read(&header).map_err(|error| error.to_string())?;
        if header.model != self.model {
            return Err(format!("it is of model {}, this is model {}", header.model, self.model));
        }
        if header.file_bytes != about.len() {
            return Err(format!("it has {} bytes and should have {}", about.len(), header.file_bytes));
        }
        let mut tokens = vec![0; header.tokens * 4];
        file.read_exact(&mut tokens).map_err(|error| error.to_string())?;
        let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        self.add(Digest::of(&tokens), header.tokens, name, about.len(), used);
        Ok(())
    }

    fn add(&mut self, digest: u64, tokens: usize, name: &str, bytes: u64, used: SystemTime) {
        self.forget(name);
        let file = SnapshotFile { name: name.to_owned(), tokens, bytes, used };
        self.files.entry(tokens).or_default().insert(digest, file);
    }

    /// Adds a file that was written to [`SnapshotFolder::path`] of this name.
    pub fn note_written(&mut self, name: &str, tokens: &[u32], bytes: u64) {
        self.add(digest(tokens), tokens.len(), name, bytes, SystemTime::now());
    }

    /// Where the snapshot of a name is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    /// All snapshots, in the order of their length.
    pub fn files(&self) -> impl Iterator<Item = &SnapshotFile> {
        self.files.values().flat_map(HashMap::values)
    }

    /// The snapshot of a name.
    pub fn get(&self, name: &str) -> Option<&SnapshotFile> {
        self.files().find(|file| file.name == name)
    }

    /// Whether a snapshot after exactly these tokens is there.
    pub fn holds(&self, tokens: &[u32]) -> bool {
        self.files.get(&tokens.len()).is_some_and(|files| files.contains_key(&digest(tokens)))
    }

    /// The longest snapshot that a prompt starts with and that leaves it a token to run. Prompts of equal digests would
    /// find each other's; reading the file tells.
    pub fn find(&self, prompt: &[u32], longer_than: usize) -> Option<&SnapshotFile> {
        let most = prompt.len().checked_sub(1).filter(|most| *most > longer_than)?;
        self.files.range(longer_than + 1..=most).next()?;
        let digests = digests(&prompt[..most]);
        let mut fitting = self.files.range(longer_than + 1..=most).rev();
        fitting.find_map(|(length, files)| files.get(&digests[length - 1]))
    }

    /// Notes that a snapshot was used, so that others are removed before it.
    pub fn note_used(&mut self, name: &str) {
        let (path, now) = (self.path(name), SystemTime::now());
        let files = self.files.values_mut().flat_map(HashMap::values_mut);
        files.filter(|file| file.name == name).for_each(|file| file.used = now);
        // Survives a restart; a folder that cannot be written is no reason not to read it.
        let _ = File::options().append(true).open(path).and_then(|file| file.set_modified(now));
    }

    /// Takes a snapshot off the index; its file stays.
    pub fn forget(&mut self, name: &str) {
        for files in self.files.values_mut() {
            files.retain(|_, file| file.name != name);
        }
        self.files.retain(|_, files| !files.is_empty());
    }

    /// Removes a snapshot and its file.
    pub fn remove(&mut self, name: &str) -> Result<(), RuntimeError> {
        let path = self.path(name);
        self.forget(name);
        fs::remove_file(&path).map_err(|source| RuntimeError::Unusable { path, source })
    }

    /// Removes what was not used for longest until so many bytes more fit into a budget; says whether they do.
    pub fn make_room(&mut self, bytes: u64, budget: u64) -> bool {
        let mut held: u64 = self.files().map(|file| file.bytes).sum();
        while held.saturating_add(bytes) > budget {
            let Some(oldest) = self.files().min_by_key(|file| file.used).cloned() else { return false };
            held -= oldest.bytes;
            // What cannot be removed is not counted any more, and not used.
            let _ = self.remove(&oldest.name);
        }
        true
    }
}

/// The digest of tokens.
fn digest(tokens: &[u32]) -> u64 {
    digests(tokens).last().copied().unwrap_or_default()
}

/// The digest after each token.
fn digests(tokens: &[u32]) -> Vec<u64> {
    let mut digest = Digest::default();
    let after = |token: &u32| {
        digest.write(&token.to_le_bytes());
        digest.finish()
    };
    tokens.iter().map(after).collect()
}

/// The name for a snapshot that nobody names: one for each text of each model.
pub fn name_of(model: Fingerprint, tokens: &[u32]) -> String {
    format!("{model}-{:016x}", digest(tokens))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_pipe_and_a_folder_are_passed_over() {
        let folder = std::env::temp_dir().join(format!("mambo-snapshots-{}", std::process::id()));
        fs::create_dir_all(folder.join("b.snapshot")).unwrap();
        assert!(Command::new("mkfifo").arg(folder.join("a.snapshot")).status().unwrap().success());
        fs::write(folder.join("c.snapshot"), "short").unwrap();
        let (opened, mut notes) = SnapshotFolder::open(&folder, Fingerprint(1)).unwrap();
        notes.sort();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(opened.files().count(), 0);
        let ends = ["it is not a regular file", "it is not a regular file", "it is too short for a snapshot"];
        assert!(
            notes.len() == 3 && notes.iter().zip(ends).all(|(note, end)| note.ends_with(end)),
            "{notes:?}"
        );
    }
}
