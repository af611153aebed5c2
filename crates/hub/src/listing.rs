//! The files of a repository, as the hub lists them. Nothing in a listing is trusted: a name that could leave the cache
//! is left out, and what becomes a file name elsewhere has to be digits.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::checksum::Checksum;
use crate::reference::is_safe_path;
use crate::{Choice, HubError, Reference, RepoId, choices};

/// A file in a repository.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    /// Its path.
    pub path: String,
    /// Its bytes, where the listing tells.
    pub size: Option<u64>,
    pub(crate) checksum: Option<Checksum>,
}

/// A revision of a repository.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The repository.
    pub repo: RepoId,
    /// The branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit it stands for.
    pub commit: String,
    /// Its files.
    pub files: Vec<RemoteFile>,
    /// Files left out because of their names.
    pub ignored: usize,
}

impl Listing {
    /// Reads what the hub says about a revision.
    pub(crate) fn parse(reference: &Reference, answer: &str) -> Result<Listing, HubError> {
        let bad = |problem: &str| HubError::BadAnswer {
            what: reference.repo.to_string(),
            problem: format!("the answer to a request for its files {problem}"),
        };
        let answer: Value = serde_json::from_str(answer).map_err(|_| bad("is not JSON"))?;
        let commit =
            answer["sha"].as_str().filter(|sha| is_commit(sha)).ok_or_else(|| bad("names no commit"))?;
        let siblings = answer["siblings"].as_array().ok_or_else(|| bad("has no list of files"))?;
        let mut files: BTreeMap<&str, RemoteFile> = BTreeMap::new();
        let mut ignored = 0;
        for file in siblings {
            let path = file["rfilename"].as_str().ok_or_else(|| bad("has a file without a name"))?;
            if !is_safe_path(path) {
                ignored += 1;
                continue;
            }
            let large = &file["lfs"];
            let checksum = large["sha256"].as_str().or(large["oid"].as_str()).or(file["blobId"].as_str());
            let size = large["size"].as_u64().or(file["size"].as_u64()).filter(|size| is_plausible(*size));
            let checksum = checksum.and_then(Checksum::parse);
            files.insert(path, RemoteFile { path: path.to_owned(), size, checksum });
        }
        Ok(Listing {
            repo: reference.repo.clone(),
            revision: reference.revision().to_owned(),
            commit: commit.to_owned(),
            files: files.into_values().collect(),
            ignored,
        })
    }

    /// The models in it.
    pub fn choices(&self) -> Result<Vec<Choice>, HubError> {
        let found = choices(self.sizes());
        if found.is_empty() {
            let others =
                [".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".safetensors", ".mlmodel"];
            let has = |end: &&str| self.files.iter().any(|file| file.path.ends_with(*end));
            let found: Vec<&str> = others.into_iter().filter(has).collect();
            return Err(HubError::NoWeights { repo: self.repo.to_string(), found: found.join(", ") });
        }
        Ok(found)
    }

    /// Paths and sizes; 0 where a size is not known.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (file.path.as_str(), file.size.unwrap_or(0)))
    }

    /// The file of that path.
    pub(crate) fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Larger than any file of a hub, and so small that no sum over a listing wraps.
const MOST_FILE_BYTES: u64 = 1 << 42;

/// Whether a file may have this size. What is beyond reason counts as not told.
pub(crate) fn is_plausible(size: u64) -> bool {
    size <= MOST_FILE_BYTES
}

/// Whether a text is the name of a commit; it becomes the name of a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(answer: &Value) -> Result<Listing, HubError> {
        Listing::parse(&"a/b".parse().unwrap(), &answer.to_string())
    }

    #[test]
    fn hostile_names_are_left_out() {
        let names =
            ["../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "c:\\x.gguf", "", "a\u{0}.gguf", "ok.gguf"];
        let siblings: Vec<Value> = names.iter().map(|name| json!({"rfilename": name, "size": 3})).collect();
        let listing = parse(&json!({"sha": "c0ffee0", "siblings": siblings})).unwrap();
        assert_eq!((listing.files.len(), listing.ignored), (1, 6));
        for commit in ["../..", "", "main", "zzzzzzz"] {
            assert!(parse(&json!({"sha": commit, "siblings": []})).is_err(), "{commit}");
        }
        assert!(parse(&json!([])).is_err());
    }

    #[test]
    fn sizes_beyond_reason_are_not_believed() {
        let file = |name: &str, size: u64| json!({"rfilename": name, "lfs": {"size": size}});
        let parts = [1, 2, 3].map(|part| file(&format!("m-0000{part}-of-00003.gguf"), u64::MAX / 2));
        let listing = parse(&json!({"sha": "c0ffee0", "siblings": parts})).unwrap();
        assert!(listing.files.iter().all(|file| file.size.is_none()));
        assert_eq!(listing.choices().unwrap()[0].bytes, 0);
        let most = parse(&json!({"sha": "c0ffee0", "siblings": [file("m.gguf", MOST_FILE_BYTES)]})).unwrap();
        assert_eq!(most.files[0].size, Some(MOST_FILE_BYTES));
    }

    #[test]
    fn no_listing_whatever_breaks_the_reader() {
        let file = json!({"rfilename": "a/b-Q4_K_M-00001-of-00002.gguf", "lfs": {"sha256": "0", "size": 9}});
        let text = json!({"sha": "c0ffee0", "siblings": [file, {"rfilename": "config.json"}]}).to_string();
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut read = 0;
        for _ in 0..20_000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = b"\"\\/.:-_0Q{}[],x"[random(15)];
            }
            let Ok(text) = String::from_utf8(bytes) else { continue };
            let Ok(listing) = Listing::parse(&"a/b".parse().unwrap(), &text) else { continue };
            read += 1;
            assert!(listing.files.iter().all(|file| is_safe_path(&file.path)), "{text}");
            let _ = listing.choices();
        }
        assert!(read > 1000, "{read}");
    }

    #[test]
    fn a_repository_without_weights_says_what_it_has() {
        let listing =
            parse(&json!({"sha": "c0ffee0", "siblings": [{"rfilename": "pytorch_model.bin"}]})).unwrap();
        let error = listing.choices().unwrap_err().to_string();
        assert!(error.contains("a/b") && error.contains("only .bin"), "{error}");
    }
}
