//! The local cache: `models--ORG--NAME/{blobs,refs,snapshots}`, as the hub's own tools lay it out. A blob is a file by
//! its checksum; a snapshot is a commit whose files are links to blobs; a ref is a branch or tag that names a commit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::checksum::Checksum;
use crate::choice::{INDEX, size_text};
use crate::hub::PlannedFile;
use crate::listing::is_commit;
use crate::{Choice, HubError, Reference, RepoId, Weights, choices, pick, usual};

/// How deep a snapshot's folders are looked into.
const MOST_FOLDERS: usize = 8;

/// A folder of downloads.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// What to open: a folder, or a GGUF file.
    pub path: PathBuf,
    /// Which of the repository's models.
    pub choice: Choice,
    /// Whether there was another to choose from.
    pub is_only: bool,
}

/// One line of what is in the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The repository.
    pub repo: RepoId,
    /// The branch, tag or commit, unless it is the one that the repository's name alone stands for.
    pub revision: Option<String>,
    /// The commit.
    pub commit: String,
    /// The model; none where a snapshot has no weights.
    pub choice: Option<Choice>,
    /// What to open.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of files of the repository that are not finished.
    pub unfinished_bytes: u64,
}

impl Cached {
    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.missing.is_empty())
    }

    /// The name to open it with.
    pub fn reference(&self) -> Reference {
        let gguf = self.choice.as_ref().filter(|choice| choice.weights == Weights::Gguf);
        Reference {
            repo: self.repo.clone(),
            revision: self.revision.clone(),
            choice: gguf.map(|choice| choice.label.clone()),
        }
    }
}

impl Cache {
    /// The cache in a folder, which need not be there.
    pub fn new(root: impl Into<PathBuf>) -> Cache {
        Cache { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn folder(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.folder())
    }

    pub(crate) fn snapshots(&self, repo: &RepoId) -> PathBuf {
        self.folder(repo).join("snapshots")
    }

    pub(crate) fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.snapshots(repo).join(commit)
    }

    pub(crate) fn blobs(&self, repo: &RepoId) -> PathBuf {
        self.folder(repo).join("blobs")
    }

    pub(crate) fn blob(&self, repo: &RepoId, checksum: &Checksum) -> PathBuf {
        self.blobs(repo).join(checksum.digits())
    }

    pub(crate) fn locks(&self, repo: &RepoId) -> PathBuf {
        self.root.join(".locks").join(repo.folder())
    }

    pub(crate) fn lock(&self, repo: &RepoId, checksum: &Checksum) -> PathBuf {
        self.locks(repo).join(format!("{}.lock", checksum.digits()))
    }

    /// Makes the folders of a repository.
    pub(crate) fn prepare(&self, repo: &RepoId) -> Result<(), HubError> {
        for folder in [self.blobs(repo), self.snapshots(repo), self.folder(repo).join("refs")] {
            fs::create_dir_all(&folder).map_err(HubError::io("make", &folder))?;
        }
        Ok(())
    }

    /// Whether a file is complete. Its checksum was right when it got its name, and it still has its size.
    pub(crate) fn has(&self, repo: &RepoId, commit: &str, file: &PlannedFile) -> bool {
        let is_whole = |path: PathBuf| fs::metadata(path).is_ok_and(|found| found.len() == file.size);
        // Where there are no links the file itself lies in the snapshot.
        is_whole(self.blob(repo, &file.checksum)) || is_whole(self.snapshot(repo, commit).join(&file.path))
    }

    /// Bytes of a file that need not come again.
    pub(crate) fn bytes_of(&self, repo: &RepoId, commit: &str, file: &PlannedFile) -> u64 {
        if self.has(repo, commit, file) {
            return file.size;
        }
        let mut unfinished = self.blob(repo, &file.checksum).into_os_string();
        unfinished.push(".incomplete");
        fs::metadata(unfinished).map_or(0, |found| found.len()).min(file.size)
    }

    /// Shows a blob as a file of a snapshot.
    pub(crate) fn link(
        &self,
        repo: &RepoId,
        commit: &str,
        path: &str,
        checksum: &Checksum,
    ) -> Result<(), HubError> {
        let (blob, link) = (self.blob(repo, checksum), self.snapshot(repo, commit).join(path));
        if !blob.is_file() {
            return Ok(());
        }
        if let Some(folder) = link.parent() {
            fs::create_dir_all(folder).map_err(HubError::io("make", folder))?;
        }
        let up = "../".repeat(path.matches('/').count() + 2);
        let target = format!("{up}blobs/{}", checksum.digits());
        place_link(&blob, Path::new(&target), &link).map_err(HubError::io("write", &link))
    }

    /// Lets a branch or tag stand for a commit.
    pub(crate) fn name(&self, repo: &RepoId, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder(repo).join("refs").join(revision);
        let failed = || HubError::io("write", &path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed())?;
        }
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}", std::process::id()));
        fs::write(&new, commit).map_err(failed())?;
        fs::rename(&new, &path).map_err(failed())
    }

    /// The commit that a reference stands for here: the one its ref names, else for the main branch the newest.
    pub(crate) fn commit(&self, reference: &Reference) -> Option<String> {
        let is_here = |commit: &str| is_commit(commit) && self.snapshot(&reference.repo, commit).is_dir();
        let named = fs::read_to_string(self.folder(&reference.repo).join("refs").join(reference.revision()));
        if let Some(commit) = named.ok().map(|text| text.trim().to_owned()).filter(|commit| is_here(commit)) {
            return Some(commit);
        }
        match &reference.revision {
            Some(revision) => Some(revision.clone()).filter(|revision| is_here(revision)),
            None => self.newest(&reference.repo),
        }
    }

    fn newest(&self, repo: &RepoId) -> Option<String> {
        let age = |commit: &String| {
            let found = fs::metadata(self.snapshot(repo, commit));
            found.and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
        };
        self.commits(repo).into_iter().max_by_key(age)
    }

    /// Every snapshot of a repository.
    pub(crate) fn commits(&self, repo: &RepoId) -> Vec<String> {
        let entries = fs::read_dir(self.snapshots(repo)).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        let mut commits: Vec<String> = names.filter(|name| is_commit(name)).collect();
        commits.sort();
        commits
    }

    /// Branches and tags, by the commit they name.
    pub(crate) fn refs(&self, repo: &RepoId) -> BTreeMap<String, String> {
        let folder = self.folder(repo).join("refs");
        let named = files_below(&folder).into_iter().filter_map(|(name, _)| {
            let commit = fs::read_to_string(folder.join(&name)).ok()?.trim().to_owned();
            is_commit(&commit).then_some((commit, name))
        });
        named.collect()
    }

    /// The folder of what is here of a model, whether or not weights are.
    pub fn folder_of(&self, reference: &Reference) -> Option<PathBuf> {
        self.commit(reference).map(|commit| self.snapshot(&reference.repo, &commit))
    }

    /// A complete model.
    pub fn find(&self, reference: &Reference) -> Result<Found, HubError> {
        let name = reference.to_string();
        let Some(commit) = self.commit(reference) else {
            return Err(match self.unfinished_bytes(&reference.repo) {
                0 => HubError::NotHere { name },
                bytes => HubError::PartlyHere {
                    name,
                    missing: format!("files are not finished, {} came", size_text(bytes)),
                },
            });
        };
        let choices = self.choices(&reference.repo, &commit);
        let repo = reference.repo.to_string();
        let choice = match &reference.choice {
            _ if choices.is_empty() => {
                return Err(HubError::PartlyHere { name, missing: "there are no weights yet".to_owned() });
            }
            None => usual(&repo, &choices, || true)?,
            Some(asked) if !choices.iter().any(|choice| choice.answers(asked)) => {
                return Err(HubError::NotHere { name });
            }
            Some(asked) => pick(&repo, &choices, asked)?,
        };
        if let Some(missing) = choice.missing.first() {
            return Err(HubError::PartlyHere { name, missing: format!("{missing} is missing") });
        }
        let (path, is_only) = (self.path_of(&reference.repo, &commit, choice), choices.len() == 1);
        Ok(Found { path, choice: choice.clone(), is_only })
    }

    fn path_of(&self, repo: &RepoId, commit: &str, choice: &Choice) -> PathBuf {
        let snapshot = self.snapshot(repo, commit);
        choice.first_gguf().map_or(snapshot.clone(), |file| snapshot.join(file))
    }

    /// The models of a snapshot, with what they lack.
    pub(crate) fn choices(&self, repo: &RepoId, commit: &str) -> Vec<Choice> {
        let snapshot = self.snapshot(repo, commit);
        let files = files_below(&snapshot);
        let sizes: BTreeMap<&str, u64> = files.iter().map(|(path, size)| (path.as_str(), *size)).collect();
        let mut found = choices(sizes.iter().map(|(path, size)| (*path, *size)));
        for choice in found.iter_mut().filter(|choice| choice.files.iter().any(|file| file == INDEX)) {
            let index = fs::read_to_string(snapshot.join(INDEX)).unwrap_or_default();
            if choice.follow_index(&index, &sizes).is_err() {
                choice.missing.push(INDEX.to_owned());
            }
        }
        found
    }

    /// Everything that is here, by repository.
    pub fn list(&self) -> Vec<Cached> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut repos: Vec<RepoId> = names.filter_map(|name| RepoId::of_folder(&name)).collect();
        repos.sort();
        repos.iter().flat_map(|repo| self.list_repo(repo)).collect()
    }

    fn list_repo(&self, repo: &RepoId) -> Vec<Cached> {
        let plain = Reference { repo: repo.clone(), revision: None, choice: None };
        let (current, refs, unfinished_bytes) =
            (self.commit(&plain), self.refs(repo), self.unfinished_bytes(repo));
        let mut rows = Vec::new();
        for commit in self.commits(repo) {
            let revision = (current.as_ref() != Some(&commit))
                .then(|| refs.get(&commit).cloned().unwrap_or_else(|| commit.clone()));
            let row = |choice: Option<Choice>, path: PathBuf, bytes: u64| Cached {
                repo: repo.clone(),
                revision: revision.clone(),
                commit: commit.clone(),
                choice,
                path,
                bytes,
                unfinished_bytes,
            };
            let choices = self.choices(repo, &commit);
            if choices.is_empty() {
                let snapshot = self.snapshot(repo, &commit);
                let bytes = files_below(&snapshot).iter().map(|(_, size)| size).sum();
                rows.push(row(None, snapshot, bytes));
            }
            for choice in choices {
                let (path, bytes) = (self.path_of(repo, &commit, &choice), choice.bytes);
                rows.push(row(Some(choice), path, bytes));
            }
        }
        if rows.is_empty() && unfinished_bytes > 0 {
            let (path, commit) = (self.folder(repo), String::new());
            let repo = repo.clone();
            rows.push(Cached {
                repo,
                revision: None,
                commit,
                choice: None,
                path,
                bytes: 0,
                unfinished_bytes,
            });
        }
        rows
    }

    /// Bytes of files that have not come whole.
    fn unfinished_bytes(&self, repo: &RepoId) -> u64 {
        let files = files_below(&self.blobs(repo));
        files.iter().filter(|(name, _)| name.ends_with(".incomplete")).map(|(_, size)| size).sum()
    }
}

/// Every file below a folder with its size, by path; links to nothing are no files, and links to folders are not
/// followed.
pub(crate) fn files_below(folder: &Path) -> Vec<(String, u64)> {
    let (mut found, mut open) = (Vec::new(), vec![(folder.to_owned(), String::new(), 0)]);
    while let Some((folder, prefix, depth)) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
            let path = format!("{prefix}{name}");
            if kind.is_dir() && depth < MOST_FOLDERS {
                open.push((entry.path(), format!("{path}/"), depth + 1));
            } else if let Ok(file) = fs::metadata(entry.path())
                && file.is_file()
            {
                found.push((path, file.len()));
            }
        }
    }
    found.sort();
    found
}

/// A link that appears at once, whatever was there before.
#[cfg(unix)]
fn place_link(_blob: &Path, target: &Path, link: &Path) -> std::io::Result<()> {
    if fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let mut new = link.to_owned().into_os_string();
    new.push(format!(".{}.link", std::process::id()));
    // What a program of the same number left when it was killed.
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(target, &new)?;
    fs::rename(&new, link)
}

/// The file itself, because links need rights that few users have.
#[cfg(not(unix))]
fn place_link(blob: &Path, _target: &Path, link: &Path) -> std::io::Result<()> {
    fs::rename(blob, link)
}
