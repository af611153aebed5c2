//! Room on a disk, for whoever is about to write a large file. Knows folders and bytes, no formats.

use std::path::Path;

/// Bytes that may be written into a folder, where the system tells.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // File systems that count nothing say that they have no blocks at all.
    if disk.f_blocks == 0 {
        return None;
    }
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Not asked for here: the write itself fails.
#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}
