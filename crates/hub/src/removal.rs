//! Taking a model out of the cache: its files in snapshots, and the blobs that no other snapshot shows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::files_below;
use crate::lock::Lock;
use crate::{Cache, HubError, Reference, RepoId, pick};

/// What would be removed.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Bytes that become free.
    pub bytes: u64,
    /// Files in snapshots, and blobs.
    files: Vec<PathBuf>,
    /// Whole folders.
    folders: Vec<PathBuf>,
    /// The snapshots' folder, below which empty folders are removed too.
    below: PathBuf,
}

impl Cache {
    /// What removing a model takes; nothing is removed yet.
    pub fn removal(&self, reference: &Reference) -> Result<Removal, HubError> {
        let repo = &reference.repo;
        let absent = || HubError::NotHere { name: reference.to_string() };
        if !self.folder(repo).is_dir() {
            return Err(absent());
        }
        if Lock::is_any_held(&self.locks(repo)) {
            return Err(HubError::Busy { repo: repo.to_string() });
        }
        if reference.revision.is_none() && reference.choice.is_none() {
            return Ok(self.whole(repo));
        }
        let commits = match &reference.revision {
            Some(_) => vec![self.commit(reference).ok_or_else(absent)?],
            None => self.commits(repo),
        };
        let mut going: BTreeSet<PathBuf> = BTreeSet::new();
        for commit in &commits {
            let snapshot = self.snapshot(repo, commit);
            match &reference.choice {
                None => going.extend(files_below(&snapshot).into_iter().map(|(path, _)| snapshot.join(path))),
                Some(asked) => {
                    let choices = self.choices(repo, commit);
                    if !choices.iter().any(|choice| choice.answers(asked)) {
                        continue;
                    }
                    let choice = pick(&repo.to_string(), &choices, asked)?;
                    going.extend(choice.files.iter().map(|path| snapshot.join(path)));
                }
            }
        }
        if going.is_empty() {
            return Err(absent());
        }
        Ok(self.only(repo, going))
    }

    /// Everything of a repository.
    fn whole(&self, repo: &RepoId) -> Removal {
        let folder = self.folder(repo);
        let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let files = files_below(&folder).into_iter().filter(|(path, _)| !is_link(&folder.join(path)));
        let bytes = files.map(|(_, size)| size).sum();
        Removal {
            bytes,
            files: Vec::new(),
            folders: vec![folder, self.locks(repo)],
            below: self.snapshots(repo),
        }
    }

    /// Some files of snapshots, and blobs that are nowhere else.
    fn only(&self, repo: &RepoId, going: BTreeSet<PathBuf>) -> Removal {
        let blob = |link: &PathBuf| fs::canonicalize(link).ok();
        let mut staying = BTreeSet::new();
        for commit in self.commits(repo) {
            let snapshot = self.snapshot(repo, &commit);
            let all = files_below(&snapshot).into_iter().map(|(path, _)| snapshot.join(path));
            staying.extend(all.filter(|path| !going.contains(path)).filter_map(|path| blob(&path)));
        }
        if staying.is_empty() {
            return self.whole(repo);
        }
        // A link may lead anywhere; only blobs of this repository are its own.
        let own = fs::canonicalize(self.blobs(repo)).unwrap_or_else(|_| self.blobs(repo));
        let blobs: BTreeSet<PathBuf> = going.iter().filter_map(blob).collect();
        let blobs: Vec<PathBuf> =
            blobs.into_iter().filter(|b| !staying.contains(b) && b.starts_with(&own)).collect();
        let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        let size = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        let bytes = blobs.iter().chain(going.iter().filter(is_file)).map(size).sum();
        let files = going.into_iter().chain(blobs).collect();
        Removal { bytes, files, folders: Vec::new(), below: self.snapshots(repo) }
    }
}

impl Removal {
    /// Removes it.
    pub fn carry_out(self) -> Result<(), HubError> {
        for path in &self.files {
            fs::remove_file(path).map_err(HubError::io("remove", path))?;
        }
        for folder in self.folders.iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder).map_err(HubError::io("remove", folder))?;
        }
        for path in &self.files {
            let above = path.ancestors().skip(1);
            for folder in above.take_while(|folder| folder.starts_with(&self.below) && *folder != self.below)
            {
                // One that still has files stays.
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}
