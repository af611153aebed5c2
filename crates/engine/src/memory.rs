//! What a model takes in memory, and whether that fits, before anything is loaded.

use mambo_kernel::{CacheLayout, KvGroup, MemoryBudget, PAGE_TOKENS, Program};

use crate::cache::{pages_for, pages_spanned};
use crate::error::EngineError;
use crate::load::{EngineConfig, ModelGraphs, SCORE_TOKENS, Weights, weight_keys};

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
    let mut windows = graphs.trunk.kv_windows();
    windows.extend(full.kv_windows().split_off(windows.len()));
    let mut layout = CacheLayout {
        kv_layers: full.kv_layers.clone(),
        kv_types: config.kv_types,
        kv_scales: Vec::new(),
        kv_groups: KvGroup::by_window(windows),
        state_layers: graphs.trunk.state_layers.clone(),
        state_elem: config.state_elem,
        slots: config.max_sequences.saturating_add(config.snapshots.slots),
        rollback: config.rollback,
    };
    let shares = SnapshotShares::of(&layout, config);
    let budget = config.prefix_cache.map_or(0, |cache| cache.bytes);
    for index in 0..layout.kv_groups.len() {
        let kept = shares.page_bytes(budget, index).checked_div(layout.page_bytes(index) as u64).unwrap_or(0);
        let group = &mut layout.kv_groups[index];
        group.pages = config
            .max_sequences
            .saturating_mul(sequence_pages(group, config))
            .saturating_add(snapshots_pages(group, config))
            .saturating_add(usize::try_from(kept).unwrap_or(usize::MAX));
    }
    layout
}

/// Most pages of a group that a sequence needs at once: all of its context, or what the tokens of a step and those that
/// can be taken back see.
pub(crate) fn sequence_pages(group: &KvGroup, config: &EngineConfig) -> usize {
    let all = pages_for(config.context_tokens);
    let ahead = config.step_tokens.max(config.max_sequences).max(SCORE_TOKENS) + config.rollback.tokens();
    group.window.map_or(all, |window| all.min(pages_spanned(window.saturating_add(ahead - 1))))
}

/// Pages of a group that one snapshot holds of a window; none where layers see everything, which later ones share.
fn window_pages(group: &KvGroup, config: &EngineConfig) -> usize {
    group.window.map_or(0, |window| pages_for(config.context_tokens).min(pages_spanned(window)))
}

/// Pages of a group that the configured snapshots hold. A snapshot holds pages like a sequence does, the last of them for
/// itself; of a window it holds what the next token sees.
fn snapshots_pages(group: &KvGroup, config: &EngineConfig) -> usize {
    let room = config.snapshots;
    let all = pages_for(room.tokens).saturating_add(room.count);
    match group.window {
        None => all,
        Some(_) => all.min(room.count.saturating_mul(window_pages(group, config))),
    }
}

/// What snapshots of one engine consist of, in bytes: decides how far they stand apart in the prefix cache, and how its
/// budget is divided.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotShares {
    /// Keys and values that later snapshots share, per token.
    shared: u64,
    /// Keys and values that a snapshot holds of windows, by group; 0 where layers see everything.
    windows: Vec<u64>,
    /// Recurrent state of a snapshot.
    state: u64,
}

impl SnapshotShares {
    pub fn of(layout: &CacheLayout, config: &EngineConfig) -> Self {
        let groups = || layout.kv_groups.iter().enumerate();
        let shared = groups().filter(|(_, group)| group.window.is_none());
        let window = |(i, group)| window_pages(group, config) as u64 * layout.page_bytes(i) as u64;
        SnapshotShares {
            shared: shared.map(|(index, _)| (layout.page_bytes(index) / PAGE_TOKENS) as u64).sum(),
            windows: groups().map(window).collect(),
            state: layout.slot_bytes() as u64,
        }
    }

    /// What a snapshot has for itself.
    fn own(&self) -> u64 {
        self.windows.iter().fold(self.state, |sum, window| sum.saturating_add(*window))
    }

    /// Tokens between two snapshots: what each has for itself takes four times what they share. Nothing where they share
    /// nothing.
    pub fn distance(&self) -> Option<usize> {
        let tokens = self.own().checked_div(4 * self.shared)?;
        Some(usize::try_from(tokens).unwrap_or(usize::MAX))
    }

    /// What of the prefix cache's budget goes to what snapshots share, see [`SnapshotShares::distance`].
    fn shared_bytes(&self, budget: u64) -> u64 {
        match (self.shared, self.own()) {
            (0, _) => 0,
            (_, 0) => budget,
            _ => budget / 4,
        }
    }

    /// What goes to states.
    fn state_bytes(&self, budget: u64) -> u64 {
        part(budget - self.shared_bytes(budget), self.state, self.own())
    }

    /// What goes to the pages of a group.
    fn page_bytes(&self, budget: u64, group: usize) -> u64 {
        match self.windows[group] {
            0 => self.shared_bytes(budget),
            window => part(budget - self.shared_bytes(budget), window, self.own()),
        }
    }
}

/// `bytes · share / all`, or nothing where there is nothing to divide by.
fn part(bytes: u64, share: u64, all: u64) -> u64 {
    let part = (u128::from(bytes) * u128::from(share)).checked_div(u128::from(all));
    part.map_or(0, |part| u64::try_from(part).unwrap_or(u64::MAX))
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
    memory: MemoryBudget,
) -> Result<(), EngineError> {
    let budget = config.prefix_cache.map_or(0, |cache| cache.bytes);
    let need = MemoryNeed {
        weights: weight_keys(programs).iter().filter_map(|(_, key)| source_bytes(weights, &key.name)).sum(),
        kv: layout.kv_bytes() as u64,
        state: (layout.slot_bytes() as u64).saturating_mul(layout.slots as u64),
        arena: programs.iter().map(|p| p.arena_bytes).max().unwrap_or(0) as u64,
        snapshots: (layout.slot_bytes() as u64)
            .saturating_mul(config.snapshots.count.saturating_sub(config.snapshots.slots) as u64)
            .saturating_add(SnapshotShares::of(layout, config).state_bytes(budget)),
    };
    let on_device = need.total().saturating_sub(need.snapshots);
    let parts = [
        ("weights", need.weights),
        ("KV cache", need.kv),
        ("recurrent state", need.state),
        ("activations", need.arena),
        ("snapshots", need.snapshots),
    ];
    match memory {
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
    source.dtype().row_bytes(cols).map(|bytes| bytes as u64 * rows as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_cache_is_divided_by_what_snapshots_hold() {
        let divided = |shared, windows: &[u64], state| {
            let shares = SnapshotShares { shared, windows: windows.to_vec(), state };
            let pages = (0..windows.len()).map(|group| shares.page_bytes(1200, group)).collect::<Vec<_>>();
            (pages, shares.state_bytes(1200), shares.distance())
        };
        assert_eq!(divided(10, &[0], 8000), (vec![300], 900, Some(200)), "a hybrid");
        assert_eq!(divided(10, &[0], 0), (vec![1200], 0, Some(0)), "all layers see everything");
        assert_eq!(divided(10, &[0, 6000, 3000], 0), (vec![300, 600, 300], 0, Some(225)), "some see windows");
        assert_eq!(divided(0, &[500], 500), (vec![600], 600, None), "no layer sees everything");
        assert_eq!(divided(0, &[], 500), (vec![], 1200, None), "no attention");
    }
}
