//! How keys and values grow with a sequence: for every token, or for no more than a window of them.

use mambo_engine::human_bytes;
use mambo_kernel::{CacheLayout, PAGE_TOKENS};
use serde::Serialize;

/// Attention layers that see a window.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KvWindow {
    /// Tokens that they see.
    pub window: usize,
    /// How many layers.
    pub layers: usize,
    /// What a token in the window takes in all of them.
    pub bytes_per_token: usize,
}

/// The windows of a model's layers, the smallest first.
pub fn windows(layout: &CacheLayout) -> Vec<KvWindow> {
    let windows = layout.kv_groups.iter().enumerate().filter_map(|(index, group)| {
        let bytes_per_token = layout.page_bytes(index) / PAGE_TOKENS;
        Some(KvWindow { window: group.window?, layers: group.layers.len(), bytes_per_token })
    });
    windows.collect()
}

/// What a token takes, and of that what only those in a window take.
pub fn kv_text(layout: &CacheLayout) -> String {
    let mut text = format!("{} per token", human_bytes(layout.kv_bytes_per_token() as u64));
    for KvWindow { window, bytes_per_token, .. } in windows(layout) {
        text += &format!(", {} of it in windows of {window}", human_bytes(bytes_per_token as u64));
    }
    text
}
