//! The whole way from a reference to a model in the cache, or to its headers alone.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mambo_checkpoint::{Checkpoint, CheckpointError, ConfigFiles, SourceFile, free_bytes};

use crate::checksum::Checksum;
use crate::choice::INDEX;
use crate::client::{Client, OnEvent, Target, encoded};
use crate::download::download;
use crate::headers::RemoteBytes;
use crate::{Cache, Choice, HubError, Listing, Reference, RepoId, Weights};

/// Longest text that is read into memory: listings, configurations, indices.
const MOST_TEXT_BYTES: u64 = 64 << 20;
/// Files that a description does not need; the first is as long as many headers.
const NOT_FOR_HEADERS: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Where a hub is and who asks.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The address, such as `https://huggingface.co`.
    pub endpoint: String,
    /// The user's token.
    pub token: Option<String>,
    /// The folder of the local cache.
    pub cache: PathBuf,
}

/// A hub and a local cache.
pub struct Hub {
    client: Arc<Client>,
    cache: Cache,
}

/// A file that belongs into the cache.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// Its path in the repository.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// Bytes that are in the cache.
    pub have: u64,
    pub(crate) checksum: Checksum,
}

/// What a download would bring.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The repository.
    pub repo: RepoId,
    /// The branch, tag or commit.
    pub revision: String,
    /// The commit.
    pub commit: String,
    /// Which of its models.
    pub choice: Choice,
    /// The files, small ones first.
    pub files: Vec<PlannedFile>,
}

impl Plan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Bytes that are not in the cache.
    pub fn missing_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size - file.have).sum()
    }
}

impl Hub {
    /// A hub that nobody has talked to yet.
    pub fn new(options: HubOptions) -> Result<Hub, HubError> {
        let client = Arc::new(Client::new(&options.endpoint, options.token)?);
        Ok(Hub { client, cache: Cache::new(options.cache) })
    }

    /// The local cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The files of a repository.
    pub fn listing(&self, reference: &Reference, on_event: &mut OnEvent) -> Result<Listing, HubError> {
        let (endpoint, repo, revision) = (self.client.endpoint(), &reference.repo, reference.revision());
        let revision = encoded(revision).replace('/', "%2F");
        let target = Target {
            url: format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true"),
            what: reference.with_choice(None).to_string(),
            page: self.page(repo),
            resumable: false,
        };
        Listing::parse(reference, &self.text_at(&target, on_event)?)
    }

    /// The text of a small file, from the cache if it is there.
    pub fn text(
        &self,
        listing: &Listing,
        path: &str,
        on_event: &mut OnEvent,
    ) -> Result<Option<String>, HubError> {
        if listing.file(path).is_none() {
            return Ok(None);
        }
        let here = self.cache.snapshot(&listing.repo, &listing.commit).join(path);
        if let Ok(text) = std::fs::read_to_string(here) {
            return Ok(Some(text));
        }
        self.text_at(&self.target(listing, path), on_event).map(Some)
    }

    /// What a download of a choice would bring.
    pub fn plan(&self, listing: &Listing, choice: &Choice, on_event: &mut OnEvent) -> Result<Plan, HubError> {
        let choice = self.complete(listing, choice, on_event)?;
        let mut files = Vec::new();
        for path in &choice.files {
            files.push(self.planned(listing, path)?);
        }
        // What is small comes first: a download that will be refused is refused early.
        files.sort_by_key(|file| file.path.ends_with(".safetensors") || file.path.ends_with(".gguf"));
        let Listing { repo, revision, commit, .. } = listing.clone();
        Ok(Plan { repo, revision, commit, choice, files })
    }

    /// Downloads what is missing; the path to open.
    pub fn pull(&self, plan: &Plan, on_event: &mut OnEvent) -> Result<PathBuf, HubError> {
        self.cache.prepare(&plan.repo)?;
        let (need, root) = (plan.missing_bytes(), self.cache.root());
        if let Some(free) = free_bytes(root).filter(|free| *free < need) {
            return Err(HubError::DiskFull {
                repo: plan.repo.to_string(),
                path: root.to_owned(),
                need,
                free,
            });
        }
        for file in &plan.files {
            if !self.cache.has(&plan.repo, &plan.commit, file) {
                let target = self.target_of((&plan.repo, &plan.commit), &file.path, true);
                let blob = self.cache.blob(&plan.repo, &file.checksum);
                let lock = self.cache.lock(&plan.repo, &file.checksum);
                download(&self.client, &target, file, (&blob, &lock), on_event)
                    .map_err(|error| error.of(&target.what))?;
            }
            self.cache.link(&plan.repo, &plan.commit, &file.path, &file.checksum)?;
        }
        // Last, so that a name never stands for less than a whole model.
        self.cache.name(&plan.repo, &plan.revision, &plan.commit)?;
        let snapshot = self.cache.snapshot(&plan.repo, &plan.commit);
        Ok(plan.choice.first_gguf().map_or(snapshot.clone(), |file| snapshot.join(file)))
    }

    /// Opens a model without downloading it: metadata and the list of tensors, no tokenizer.
    pub fn open_headers(
        &self,
        listing: &Listing,
        choice: &Choice,
        on_event: &mut OnEvent,
    ) -> Result<Checkpoint, HubError> {
        let choice = self.complete(listing, choice, on_event)?;
        let beside = match choice.weights {
            Weights::Gguf => ConfigFiles::default(),
            Weights::Safetensors => self.configuration(listing, on_event)?,
        };
        let mut files = Vec::new();
        for path in
            choice.files.iter().filter(|path| path.ends_with(".safetensors") || path.ends_with(".gguf"))
        {
            let size = self.planned(listing, path)?.size;
            let source = RemoteBytes::new(self.client.clone(), self.target(listing, path), size);
            files.push(SourceFile::new(format!("{}/{path}", listing.repo), source));
        }
        let label = match choice.weights {
            Weights::Gguf => format!("{}:{}", listing.repo, choice.label),
            Weights::Safetensors => listing.repo.to_string(),
        };
        Ok(Checkpoint::from_sources(&label, beside, files)?)
    }

    /// The JSON files beside safetensors, as far as a description needs them.
    pub fn configuration(&self, listing: &Listing, on_event: &mut OnEvent) -> Result<ConfigFiles, HubError> {
        let folder = PathBuf::from(listing.repo.to_string());
        // The parser asks for texts and knows its own errors only; ours is kept aside.
        let mut failed = None;
        let parsed = ConfigFiles::from_texts(&folder, |name| {
            if NOT_FOR_HEADERS.contains(&name) || failed.is_some() {
                return Ok(None);
            }
            Ok(self.text(listing, name, on_event).unwrap_or_else(|error| {
                failed = Some(error);
                None
            }))
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(parsed?),
        }
    }

    /// A choice with the shards that its index names, none of which may be missing.
    fn complete(
        &self,
        listing: &Listing,
        choice: &Choice,
        on_event: &mut OnEvent,
    ) -> Result<Choice, HubError> {
        let mut choice = choice.clone();
        if choice.files.iter().any(|file| file == INDEX)
            && let Some(index) = self.text(listing, INDEX, on_event)?
        {
            let sizes: BTreeMap<&str, u64> = listing.sizes().collect();
            let file = format!("{}/{INDEX}", listing.repo);
            choice.follow_index(&index, &sizes).map_err(|reason| CheckpointError::Json { file, reason })?;
        }
        match choice.missing.first() {
            Some(file) => Err(HubError::Incomplete {
                repo: listing.repo.to_string(),
                file: file.clone(),
                label: choice.label.clone(),
            }),
            None => Ok(choice),
        }
    }

    /// A file with size and checksum, asked for where the listing does not tell.
    fn planned(&self, listing: &Listing, path: &str) -> Result<PlannedFile, HubError> {
        let target = self.target(listing, path);
        let listed = listing.file(path);
        let (mut size, mut checksum) =
            (listed.and_then(|file| file.size), listed.and_then(|file| file.checksum.clone()));
        if size.is_none() || checksum.is_none() {
            let facts = self.client.file_facts(&target)?;
            (size, checksum) = (facts.size, facts.checksum);
        }
        let (Some(size), Some(checksum)) = (size, checksum) else {
            let problem =
                "the hub tells neither in its listing nor in headers which size and checksum it has";
            return Err(HubError::BadAnswer { what: target.what, problem: problem.to_owned() });
        };
        let mut file = PlannedFile { path: path.to_owned(), size, have: 0, checksum };
        file.have = self.cache.bytes_of(&listing.repo, &listing.commit, &file);
        Ok(file)
    }

    fn text_at(&self, target: &Target, on_event: &mut OnEvent) -> Result<String, HubError> {
        self.client.read(target, None, on_event, |answer| {
            let mut body = answer.body;
            body.with_config().limit(MOST_TEXT_BYTES).read_to_string().map_err(io::Error::other)
        })
    }

    fn target(&self, listing: &Listing, path: &str) -> Target {
        self.target_of((&listing.repo, &listing.commit), path, false)
    }

    fn target_of(&self, (repo, commit): (&RepoId, &str), path: &str, resumable: bool) -> Target {
        let url = format!("{}/{repo}/resolve/{commit}/{}", self.client.endpoint(), encoded(path));
        Target { url, what: format!("{path} of {repo}"), page: self.page(repo), resumable }
    }

    fn page(&self, repo: &RepoId) -> String {
        format!("{}/{repo}", self.client.endpoint())
    }
}
