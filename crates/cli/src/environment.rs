//! The one place that reads environment variables: where a hub cache may be.

use std::path::PathBuf;

/// The folder of the hub's local cache.
pub fn hub_cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(cache) = folder("HF_HUB_CACHE") {
        return Some(cache);
    }
    let home =
        folder("HF_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache").join("huggingface")))?;
    Some(home.join("hub"))
}
