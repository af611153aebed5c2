//! What a model takes in memory, and whether that fits, before anything is loaded.

use mambo_kernel::{CacheLayout, PAGE_TOKENS, Program};

use crate::error::EngineError;
use crate::load::{EngineConfig, ModelGraphs, SnapshotRoom, Weights, weight_keys};

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
    /// Snapshots kept beside the caches.
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
    CacheLayout {
        kv_layers: full.kv_layers.clone(),
        kv_types: config.kv_types,
        kv_scales: Vec::new(),
        pages: config.max_sequences * config.context_tokens.div_ceil(PAGE_TOKENS),
        state_layers: graphs.trunk.state_layers.clone(),
        state_elem: config.state_elem,
        slots: config.max_sequences,
        rollback: config.rollback,
    }
}

/// A byte count for people.
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
) -> Result<(), EngineError> {
    let need = MemoryNeed {
        weights: weight_keys(programs)
            .iter()
            .filter_map(|(_, key, _)| source_bytes(weights, &key.name))
            .sum(),
        kv: layout.kv_bytes() as u64,
        state: (layout.slot_bytes() * layout.slots) as u64,
        arena: programs.iter().map(|p| p.arena_bytes).max().unwrap_or(0) as u64,
        snapshots: snapshot_bytes(config.snapshots, layout),
    };
    let kept = match need.snapshots {
        0 => String::new(),
        bytes => format!(", snapshots {}", human_bytes(bytes)),
    };
    match config.memory_bytes {
        Some(available) if need.total() > available => Err(EngineError::DoesNotFit {
            need: human_bytes(need.total()),
            parts: format!(
                "weights {}, KV cache {}, recurrent state {}, activations {}{kept}",
                human_bytes(need.weights),
                human_bytes(need.kv),
                human_bytes(need.state),
                human_bytes(need.arena)
            ),
            available: human_bytes(available),
        }),
        _ => Ok(()),
    }
}

/// Bytes of snapshots; as many as a number holds if they are more.
fn snapshot_bytes(room: SnapshotRoom, layout: &CacheLayout) -> u64 {
    let slots = (layout.slot_bytes() as u64).saturating_mul(room.count as u64);
    slots.saturating_add((layout.kv_bytes_per_token() as u64).saturating_mul(room.tokens as u64))
}

/// Bytes of a weight in its stored form.
pub(crate) fn source_bytes(weights: &dyn Weights, name: &str) -> Option<u64> {
    let source = weights.weight(name)?;
    let cols = *source.shape().last()?;
    let rows: usize = source.shape().iter().rev().skip(1).product();
    source.dtype().row_bytes(cols).map(|bytes| (bytes * rows) as u64)
}
