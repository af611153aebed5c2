//! The one place that reads environment variables: where a hub cache may be.

use std::path::PathBuf;

/// The folder of the hub's local cache.
pub fn hub_cache() -> Option<PathBuf> {
    let home = std::env::var_os("HF_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cache").join("huggingface")))?;
    Some(home.join("hub"))
}
