//! Hub ids such as `owner/model` in a local cache of downloads. Knows the cache's folders, not what is in the files.

use std::path::{Path, PathBuf};

use crate::RuntimeError;

/// A path as it is, or the folder of a hub id in `cache`.
pub(crate) fn resolve(name: &Path, cache: Option<&Path>) -> Result<PathBuf, RuntimeError> {
    let text = name.to_string_lossy();
    let parts: Vec<&str> = text.split('/').collect();
    if name.exists() || parts.len() != 2 || text.starts_with(['.', '/', '~']) {
        return Ok(name.to_owned());
    }
    let folder = cache.map(|cache| cache.join(format!("models--{}--{}", parts[0], parts[1])));
    let found = folder.and_then(|folder| snapshot(&folder));
    found.ok_or_else(|| RuntimeError::NotFound { name: text.into_owned() })
}

/// The snapshot of a cached model that its main branch names, else the newest.
fn snapshot(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.join("snapshots");
    let main = std::fs::read_to_string(folder.join("refs").join("main")).ok();
    // A name with anything else in it would lead out of the cache.
    let named = main.as_deref().map(str::trim).filter(|m| m.chars().all(|c| c.is_ascii_hexdigit()));
    if let Some(path) = named.filter(|m| !m.is_empty()).map(|m| snapshots.join(m)).filter(|p| p.is_dir()) {
        return Some(path);
    }
    let all = std::fs::read_dir(snapshots).ok()?.flatten();
    let newest = all.max_by_key(|e| e.metadata().and_then(|m| m.modified()).ok());
    newest.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_branch_names_the_snapshot() {
        let folder = std::env::temp_dir().join(format!("mambo-hub-{}", std::process::id()));
        let snapshots = folder.join("snapshots");
        for name in ["aa11", "bb22"] {
            std::fs::create_dir_all(snapshots.join(name)).unwrap();
        }
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        for name in ["aa11", "bb22"] {
            std::fs::write(folder.join("refs/main"), format!("{name}\n")).unwrap();
            assert_eq!(snapshot(&folder), Some(snapshots.join(name)));
        }
        for odd in ["", "../..", "cc33"] {
            std::fs::write(folder.join("refs/main"), odd).unwrap();
            let found = snapshot(&folder).unwrap();
            assert_eq!(found.parent(), Some(&*snapshots), "{odd}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
