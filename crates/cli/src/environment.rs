//! The one place that reads environment variables: where the hub and local caches are, and who asks. They are those
//! of the hub's own tools. (The HTTP client knows HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE, as every program does.)

use std::path::PathBuf;

/// The hub that everybody means.
const ENDPOINT: &str = "https://huggingface.co";

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn folder(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The user's folder of things that can be made again.
fn cache() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")))
}

/// Where kernels are kept that were compiled for this machine's GPU.
pub fn kernel_folder() -> Option<PathBuf> {
    Some(cache()?.join("mambo").join("kernels"))
}

/// The folder of the hub's tools: downloads and the token.
fn hub_home() -> Option<PathBuf> {
    folder("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
}

/// The folder of the hub's local cache.
pub fn hub_cache() -> Option<PathBuf> {
    folder("HF_HUB_CACHE").or_else(|| Some(hub_home()?.join("hub")))
}

/// The address of the hub.
pub fn hub_endpoint() -> String {
    text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned())
}

/// The user's token.
pub fn hub_token() -> Option<String> {
    let file = || {
        let path = folder("HF_TOKEN_PATH").or_else(|| Some(hub_home()?.join("token")))?;
        std::fs::read_to_string(path).ok()
    };
    let token = text("HF_TOKEN").or_else(file)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Whether the user wants no network at all.
pub fn is_offline() -> bool {
    text("HF_HUB_OFFLINE")
        .is_some_and(|value| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "yes" | "on"))
}
