//! Room on the disk, asked for before anything is written: a model takes minutes to hours, and a full disk is
//! everybody's problem. Knows folders and bytes, no formats.

use std::path::Path;

use mambo_checkpoint::free_bytes;
use mambo_engine::human_bytes;

use crate::ConvertError;

/// Refuses an output of so many bytes where the system says that they do not fit.
pub(crate) fn check(output: &Path, bytes: u64) -> Result<(), ConvertError> {
    match free_beside(output) {
        Some(free) if free < bytes => Err(ConvertError::DiskFull {
            path: output.to_owned(),
            need: human_bytes(bytes),
            free: human_bytes(free),
        }),
        _ => Ok(()),
    }
}

/// Bytes that may be written beside the output, where the system tells.
fn free_beside(output: &Path) -> Option<u64> {
    // A file that is replaced may be a link to another disk; a new one has only its folder.
    let target = output.canonicalize().unwrap_or_else(|_| output.to_owned());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    free_bytes(folder)
}
