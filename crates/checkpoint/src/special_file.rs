//! What must not be opened: opening a pipe waits for a writer, and a device may never end. Compiled where the system
//! can map files.

use std::fs;
use std::path::Path;

use crate::CheckpointError;

/// Refuses what is there but no regular file. What is missing is for whoever opens it to report.
pub(crate) fn refuse_special(path: &Path) -> Result<(), CheckpointError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(CheckpointError::NotACheckpoint {
            path: path.to_path_buf(),
            problem: format!("this is {}, not a regular file", kind(found.file_type())),
            remedy: "give a model file or the folder that holds it".to_string(),
        }),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn kind(found: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if found.is_fifo() {
        "a named pipe"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_dir() {
        "a folder"
    } else {
        "a device"
    }
}

#[cfg(not(unix))]
fn kind(found: fs::FileType) -> &'static str {
    if found.is_dir() { "a folder" } else { "a device" }
}
