//! What a model takes in memory, and whether that fits, before anything is loaded.

use mambo_kernel::{CacheLayout, MemoryBudget, PAGE_TOKENS, Program};

use crate::error::EngineError;
use crate::load::{EngineConfig, ModelGraphs, Weights, weight_keys};

/// What a loaded model will take, before anything is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights, in their stored form.
    pub weights: u64,
    /// KV pages.
    pub kv: u64,
    /// Recurrent slots.
    pub state: u64,
    /// Activations.
    pub arena: u64,
    /// States of snapshots kept beside the caches.
    pub snapshots: u64,
}

impl MemoryNeed {
    /// The sum.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.state, self.arena, self.snapshots]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// The caches a model gets under a configuration; scales of 8-bit floats come with its weights.
pub fn cache_layout(graphs: &ModelGraphs, config: &EngineConfig) -> CacheLayout {
    let full = graphs.mtp.map_or(graphs.trunk, |(_, mtp)| mtp);
    let mut layout = CacheLayout {
        kv_layers: full.kv_layers.clone(),
        kv_types: config.kv_types,
        kv_scales: Vec::new(),
        // A snapshot holds pages like a sequence does, the last of them for itself.
        pages: config
            .max_sequences
            .saturating_mul(config.context_tokens.div_ceil(PAGE_TOKENS))
            .saturating_add(config.snapshots.tokens.div_ceil(PAGE_TOKENS))
            .saturating_add(config.snapshots.count),
        state_layers: graphs.trunk.state_layers.clone(),
        state_elem: config.state_elem,
        slots: config.max_sequences.saturating_add(config.snapshots.slots),
        rollback: config.rollback,
    };
    // Without attention layers, pages hold nothing.
    let page_bytes = (layout.kv_bytes_per_token() * PAGE_TOKENS) as u64;
    let kept = kept_prefix_bytes(config)[0].checked_div(page_bytes).unwrap_or(0);
    layout.pages = layout.pages.saturating_add(usize::try_from(kept).unwrap_or(usize::MAX));
    layout
}

/// What the prefix cache may take in pages and in states: states are the larger part, see how far they stand apart.
fn kept_prefix_bytes(config: &EngineConfig) -> [u64; 2] {
    let bytes = config.prefix_cache.map_or(0, |cache| cache.bytes);
    [bytes / 4, bytes - bytes / 4]
}

/// A byte count in a readable unit.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Refuses what does not fit, with the arithmetic.
pub(crate) fn check_memory(
    programs: &[Program],
    layout: &CacheLayout,
    weights: &dyn Weights,
    config: &EngineConfig,
    budget: MemoryBudget,
) -> Result<(), EngineError> {
    let need = MemoryNeed {
        weights: weight_keys(programs).iter().filter_map(|(_, key)| source_bytes(weights, &key.name)).sum(),
        kv: layout.kv_bytes() as u64,
        state: (layout.slot_bytes() as u64).saturating_mul(layout.slots as u64),
        arena: programs.iter().map(|p| p.arena_bytes).max().unwrap_or(0) as u64,
        snapshots: (layout.slot_bytes() as u64)
            .saturating_mul(config.snapshots.count.saturating_sub(config.snapshots.slots) as u64)
            .saturating_add(kept_prefix_bytes(config)[1]),
    };
    let on_device = need.total().saturating_sub(need.snapshots);
    let parts = [
        ("weights", need.weights),
        ("KV cache", need.kv),
        ("recurrent state", need.state),
        ("activations", need.arena),
        ("snapshots", need.snapshots),
    ];
    match budget {
        // Snapshots of states are in the host's memory wherever the rest is.
        MemoryBudget { host, device: Some(device) } => {
            fits(on_device, device, "on the device", &parts[..4])?;
            host.map_or(Ok(()), |host| fits(need.snapshots, host, "on the host", &parts[4..]))
        }
        MemoryBudget { host: Some(host), device: None } => fits(need.total(), host, "here", &parts),
        MemoryBudget { host: None, device: None } => Ok(()),
    }
}

fn fits(need: u64, available: u64, place: &str, parts: &[(&str, u64)]) -> Result<(), EngineError> {
    if need <= available {
        return Ok(());
    }
    let parts: Vec<String> = parts
        .iter()
        .filter(|(name, bytes)| *bytes > 0 || *name != "snapshots")
        .map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes)))
        .collect();
    Err(EngineError::DoesNotFit {
        need: human_bytes(need),
        parts: parts.join(", "),
        available: format!("{} is available {place}", human_bytes(available)),
    })
}

/// Bytes of a weight in its stored form.
pub fn source_bytes(weights: &dyn Weights, name: &str) -> Option<u64> {
    let source = weights.weight(name)?;
    let cols = *source.shape().last()?;
    let rows: usize = source.shape().iter().rev().skip(1).product();
    source.dtype().row_bytes(cols).map(|bytes| (bytes * rows) as u64)
}
