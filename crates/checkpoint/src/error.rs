//! Everything that can be wrong with a model file, as messages that name the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error(
        "cannot {action} {path}: {source}; {remedy}",
        path = path.display(), remedy = remedy_for(action, source.kind())
    )]
    Io {
        /// What was tried: `open`, `read`, `write`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is nothing at the path, or nothing that can be used.
    #[error("{path}: {problem}; {remedy}", path = path.display())]
    NotACheckpoint {
        /// The path that was asked for.
        path: PathBuf,
        /// What is missing or ambiguous.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The sharded weights lack a file.
    #[error("{index}: shard {shard} is missing; download it into the same folder")]
    MissingShard {
        /// The index that names the shard.
        index: String,
        /// The missing file.
        shard: String,
    },
    /// The file ends before something it declares.
    #[error(
        "{file}: {what} needs {needed} bytes at offset {offset}, but only {left} are left; \
         the file is cut off or damaged, download it again"
    )]
    Truncated {
        /// The file.
        file: String,
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: u64,
        /// How much it needs.
        needed: u64,
        /// How much the file has.
        left: u64,
    },
    /// A tensor's bytes could not be had from where the file is.
    #[error(
        "{file}: cannot read tensor `{tensor}`: {source}; check that the file is still there and complete"
    )]
    ReadTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The reason.
        source: io::Error,
    },
    /// A tensor has more bytes than this machine's addresses can count.
    #[error(
        "{file}: {bytes} bytes of tensor `{tensor}` are more than this machine can address at once; \
         use a 64-bit machine or a smaller model"
    )]
    TooLarge {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The bytes that were to be read at once.
        bytes: u64,
    },
    /// The file contradicts itself or its format.
    #[error("{file}: {problem}; the file is damaged, download or convert it again")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong, naming the tensor or key.
        problem: String,
    },
    /// A text file that does not parse.
    #[error("{file}: not valid JSON: {reason}; correct the file or download it again")]
    Json {
        /// The file.
        file: String,
        /// What the parser says.
        reason: String,
    },
    /// A well-formed file that this program cannot read.
    #[error("{file}: {problem}; {remedy}")]
    Unsupported {
        /// The file.
        file: String,
        /// What is not supported.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// A tensor of an element type that this program does not know.
    #[error(
        "{file}: tensor `{tensor}` has type {type_name}, which is not supported; use a file with {supported}"
    )]
    UnknownType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The type as the file gives it.
        type_name: String,
        /// The types that would do.
        supported: String,
    },
    /// A metadata key that has to be there is not.
    #[error("{file}: metadata key `{key}` is missing; convert the file again with a current converter")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A metadata key holds something else than wanted.
    #[error("{file}: metadata key `{key}` is {found}, but should be {wanted}; convert the file again")]
    KeyType {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What the file holds, with its type.
        found: String,
        /// The type that was asked for.
        wanted: &'static str,
    },
    /// A file cannot be written the way it was asked for: a mistake of the caller.
    #[error("{path}: {problem}", path = path.display())]
    Write {
        /// The output file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl CheckpointError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError {
        let path = path.to_path_buf();
        move |source| CheckpointError::Io { action, path, source }
    }

    pub(crate) fn malformed(file: &str, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::Malformed { file: file.to_string(), problem: one_line(&problem.into()) }
    }
}

/// What helps where the system refused.
fn remedy_for(action: &str, reason: io::ErrorKind) -> &'static str {
    match (action, reason) {
        ("write", io::ErrorKind::NotFound) => "the folder around it must exist",
        ("write", io::ErrorKind::StorageFull) => "free some space, or write to another disk",
        (_, io::ErrorKind::NotFound) => {
            "it is a link to nothing or was moved meanwhile, open the model again once its files are complete"
        }
        (_, io::ErrorKind::PermissionDenied) => "check who may read and write there",
        (_, io::ErrorKind::InvalidData) => "the file is damaged, download it again",
        _ => "check the disk, then try again",
    }
}

/// Text from a file, fit for a message: names in damaged files hold line breaks and run on for megabytes.
pub(crate) fn one_line(text: &str) -> String {
    const SHOWN: usize = 400;
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == SHOWN {
            out.push_str("...");
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
