//! `ORG/NAME[@REVISION][:FILE or QUANT]`: what a model of the hub is called on a command line. Everything in it ends
//! up in paths and addresses, so nothing that could leave either gets past here.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::HubError;

/// The branch that is meant where none is named.
const MAIN: &str = "main";

/// A repository: `ORG/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepoId {
    org: String,
    name: String,
}

/// A model in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The repository.
    pub repo: RepoId,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
    /// A file, or a quantisation such as `Q4_K_M`.
    pub choice: Option<String>,
}

impl RepoId {
    /// The folder of the repository in a cache: its name and a place for nothing else, because ids hold no `--`.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    /// The repository of a folder in a cache.
    pub(crate) fn of_folder(folder: &str) -> Option<RepoId> {
        let (org, name) = folder.strip_prefix("models--")?.split_once("--")?;
        format!("{org}/{name}").parse().ok()
    }
}

impl Display for RepoId {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<RepoId, HubError> {
        let bad = || HubError::BadReference { text: text.to_owned() };
        let (org, name) = text.split_once('/').ok_or_else(bad)?;
        let is_name = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty()
                && part.len() <= 96
                && part.chars().all(plain)
                && !part.starts_with(['.', '-'])
                && !part.ends_with(['.', '-'])
                && !part.contains("..")
                && !part.contains("--")
        };
        match is_name(org) && is_name(name) {
            true => Ok(RepoId { org: org.to_owned(), name: name.to_owned() }),
            false => Err(bad()),
        }
    }
}

impl Reference {
    /// The revision, or the main branch.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// The same model with another choice of files.
    pub fn with_choice(&self, choice: Option<&str>) -> Reference {
        Reference { choice: choice.map(str::to_owned), ..self.clone() }
    }
}

impl Display for Reference {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(choice) = &self.choice {
            write!(f, ":{choice}")?;
        }
        Ok(())
    }
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Reference, HubError> {
        let bad = || HubError::BadReference { text: text.to_owned() };
        let (rest, choice) = match text.split_once(':') {
            Some((rest, choice)) => (rest, Some(choice)),
            None => (text, None),
        };
        let (repo, revision) = match rest.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (rest, None),
        };
        let fits = |part: Option<&str>| part.is_none_or(is_safe_path);
        if !fits(revision) || !fits(choice) {
            return Err(bad());
        }
        let repo = repo.parse().map_err(|_| bad())?;
        Ok(Reference { repo, revision: revision.map(str::to_owned), choice: choice.map(str::to_owned) })
    }
}

/// Whether a name with slashes stays below the folder it is joined to, on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let is_plain = |part: &str| {
        // Windows drops dots and spaces at the end, so that `.. ` would be `..`.
        !part.is_empty() && part != "." && part != ".." && !part.ends_with(['.', ' '])
    };
    let odd = |c: char| c.is_control() || matches!(c, '\\' | ':' | '"' | '<' | '>' | '|' | '?' | '*');
    path.len() <= 512 && !path.contains(odd) && path.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_read_as_they_are_written() {
        for text in ["a/b", "org/Name-1.5_x", "a/b:Q4_K_M", "a/b@v1.0", "a/b@refs/pr/3:sub/x-00001.gguf"] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
        }
        let reference: Reference = "a/b@dev:q8_0".parse().unwrap();
        assert_eq!((reference.revision(), reference.choice.as_deref()), ("dev", Some("q8_0")));
        assert_eq!("a/b".parse::<Reference>().unwrap().revision(), "main");
    }

    #[test]
    fn what_would_leave_the_cache_is_no_reference() {
        let wrong = [
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../..",
            "a/..",
            "../b",
            "./b",
            "~/b",
            "a/b@",
            "a/b:",
            "a/b@../x",
            "a/b:../x",
            "a/b:/etc/passwd",
            "a/b@/x",
            "a/b:x/../y",
            "a--b/c",
            "a/b c",
            "a/b\n",
            "a\\b/c",
            "a/b:C:\\x",
            "a/b:x\\..\\y",
            "a/b:.. /y",
        ];
        for text in wrong {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn folders_and_repositories_name_each_other() {
        let repo: RepoId = "org/some-name".parse().unwrap();
        assert_eq!(RepoId::of_folder(&repo.folder()), Some(repo));
        for folder in ["datasets--a--b", "models--a", "models--a--..", "models--a--b--c", "models----b"] {
            assert_eq!(RepoId::of_folder(folder), None, "{folder}");
        }
    }
}
