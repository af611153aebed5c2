//! What can go wrong between a repository of the hub and the local cache. Every message names the repository or the
//! file, and what to do; which flag or variable does it is for the program to add.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use mambo_checkpoint::CheckpointError;

use crate::Choice;
use crate::choice::size_text;

/// Why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not the name of a model.
    #[error("`{text}` is not a model of the hub; write ORG/NAME, ORG/NAME:QUANT or ORG/NAME@REVISION:FILE")]
    BadReference {
        /// What was given.
        text: String,
    },
    /// Not an address.
    #[error("the hub's address `{address}` {problem}; it should look like https://huggingface.co")]
    BadEndpoint {
        /// What was given.
        address: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A token that cannot be sent.
    #[error("the token holds spaces, line breaks or other characters that no token has; log in again")]
    BadToken,
    /// 401 or 403.
    #[error("{}", no_access(what, page, *status, *has_token))]
    NoAccess {
        /// The file or repository.
        what: String,
        /// The repository's page.
        page: String,
        /// The answer's status.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// 404.
    #[error("{what}: the hub has no such repository, revision or file; check the name at {page}")]
    Missing {
        /// The file or repository.
        what: String,
        /// The repository's page.
        page: String,
    },
    /// 429, too often or for too long.
    #[error("{what}: the hub allows no more requests for {}; try again then{}",
        seconds.map_or("now".to_owned(), |s| format!("{s} seconds")),
        if *has_token { "" } else { ", or log in: with a token it allows more" })]
    RateLimited {
        /// The file or repository.
        what: String,
        /// How long, where the hub said it.
        seconds: Option<u64>,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Any other status.
    #[error("{what}: the hub answered with status {status}; try again later{}", kept(*resumable))]
    Status {
        /// The file or repository.
        what: String,
        /// The status.
        status: u16,
        /// Whether bytes of the file are kept.
        resumable: bool,
    },
    /// No answer at all.
    #[error("{what}: cannot reach {host}: {reason}; check the network{}", kept(*resumable))]
    Unreachable {
        /// The file or repository.
        what: String,
        /// The machine.
        host: String,
        /// Why not.
        reason: String,
        /// Whether bytes of the file are kept.
        resumable: bool,
    },
    /// A transfer that broke too often.
    #[error(
        "{what}: the transfer broke off {times} times in a row, last at byte {done} of {size} ({reason}); what came is \
         kept, pull again to go on"
    )]
    BrokenOff {
        /// The file.
        what: String,
        /// Attempts that brought nothing.
        times: u32,
        /// Bytes that are there.
        done: u64,
        /// Bytes in all.
        size: u64,
        /// The last reason.
        reason: String,
    },
    /// The bytes are not those the hub listed.
    #[error(
        "{what}: the checksum is {found} and should be {expected}; the download was removed, pull again, and if it \
         fails again something between here and the hub changes files"
    )]
    WrongChecksum {
        /// The file.
        what: String,
        /// What the hub says.
        expected: String,
        /// What came.
        found: String,
    },
    /// An answer that makes no sense.
    #[error("{what}: {problem}; check that the address is a hub's and not a login page")]
    BadAnswer {
        /// The file or repository.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A repository without weights that can be read.
    #[error(
        "{repo} has no weights in safetensors with a config.json, nor in GGUF{}; look for a conversion of it",
        if found.is_empty() { String::new() } else { format!(", only {found}") }
    )]
    NoWeights {
        /// The repository.
        repo: String,
        /// Formats it has instead.
        found: String,
    },
    /// A name that matches no file, or more than one.
    #[error("{}", not_one(repo, asked.as_deref(), choices))]
    NotOneChoice {
        /// The repository.
        repo: String,
        /// What was asked for.
        asked: Option<String>,
        /// What there is.
        choices: Vec<Choice>,
    },
    /// A model that lacks files in its own repository.
    #[error("{repo}: the repository lacks {file}, a part of {label}; choose another one")]
    Incomplete {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The choice.
        label: String,
    },
    /// Not enough room.
    #[error("{repo}: {} are still to come, but {path} has room for {}; free some space",
        size_text(*need), size_text(*free), path = path.display())]
    DiskFull {
        /// The repository.
        repo: String,
        /// The cache.
        path: PathBuf,
        /// Bytes to come.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// The system refused.
    #[error("cannot {action} {path}: {source}; {remedy}", path = path.display(), remedy = remedy(source.kind()))]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The system refused while a file was downloaded.
    #[error("{what}: {source}")]
    File {
        /// The file.
        what: String,
        /// What the system said.
        source: Box<HubError>,
    },
    /// Another program is at it.
    #[error("{repo} is being downloaded by another program; wait until it is done")]
    Busy {
        /// The repository.
        repo: String,
    },
    /// Nothing of the model is in the cache.
    #[error("{name} is not on this machine")]
    NotHere {
        /// The model.
        name: String,
    },
    /// Some of the model is in the cache.
    #[error("{name} is on this machine only in part: {missing}")]
    PartlyHere {
        /// The model.
        name: String,
        /// What is not there.
        missing: String,
    },
    /// The caller's callback ended the work.
    #[error("{what}: stopped; what came is kept, pull again to go on")]
    Stopped {
        /// The file.
        what: String,
    },
    /// The headers cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_owned();
        move |source| HubError::Io { action, path, source }
    }

    /// The same error, with the file it is about where it has only a path in the cache.
    pub(crate) fn of(self, what: &str) -> HubError {
        match self {
            HubError::Io { .. } => HubError::File { what: what.to_owned(), source: Box::new(self) },
            other => other,
        }
    }
}

fn kept(resumable: bool) -> &'static str {
    if resumable { "; what came is kept, pull again to go on" } else { "" }
}

fn no_access(what: &str, page: &str, status: u16, has_token: bool) -> String {
    match (status, has_token) {
        // The hub does not tell strangers which private repositories there are.
        (401, false) => format!(
            "{what}: the hub wants to know who asks, or there is no such repository; check the name, accept the \
             conditions at {page} and log in"
        ),
        (401, true) => format!("{what}: the hub does not accept the token; make a new one and log in again"),
        (_, false) => format!("{what}: access is restricted; accept the conditions at {page} and log in"),
        (_, true) => {
            format!(
                "{what}: the token gives no access; accept the conditions at {page}, or use another token"
            )
        }
    }
}

fn not_one(repo: &str, asked: Option<&str>, choices: &[Choice]) -> String {
    let mut text = match asked {
        Some(asked) if choices.iter().any(|c| c.answers(asked)) => {
            format!("{repo}:{asked} could be several; name one of")
        }
        Some(asked) => format!("{repo} has no {asked}; it has"),
        None => format!("{repo} has several models and none is the usual one; name one of"),
    };
    for (i, choice) in choices.iter().enumerate() {
        let separator = if i == 0 { " " } else { ", " };
        let _ = write!(text, "{separator}{}", choice.described());
    }
    text
}

fn remedy(reason: io::ErrorKind) -> &'static str {
    match reason {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full; free some space, then pull again to go on where it stopped"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "check who may write there, or use another folder for the cache"
        }
        _ => "check the disk, then try again",
    }
}
