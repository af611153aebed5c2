//! Weights that a format cannot hold: they stand in a list beside the panels, and their products are added
//! when all others are summed, in the order of lanes and columns.

use std::sync::Mutex;

use super::format::PANEL_ROWS;

/// A weight that its panel counts as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rare {
    column: u32,
    /// Row of the panel.
    lane: u16,
    bf16: u16,
}

impl Rare {
    pub fn new(lane: usize, column: usize, bf16: u16) -> Rare {
        Rare {
            column: u32::try_from(column).expect("fewer columns than a number holds"),
            lane: lane as u16,
            bf16,
        }
    }

    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(self.bf16) << 16)
    }
}

/// The rare weights of all panels.
#[derive(Default)]
pub(crate) struct RareWeights {
    list: Vec<Rare>,
    /// Where each panel's end in the list; empty if no panel has any.
    ends: Vec<usize>,
}

impl RareWeights {
    /// The weights of a panel.
    #[inline(always)]
    pub fn of(&self, panel: usize) -> &[Rare] {
        let Some(&end) = self.ends.get(panel) else { return &[] };
        &self.list[if panel == 0 { 0 } else { self.ends[panel - 1] }..end]
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.list.len() * size_of::<Rare>() + self.ends.len() * size_of::<usize>()
    }
}

/// Adds the products of rare weights to the sums of a panel. `x` is the row's value in a column.
#[inline(always)]
pub(crate) fn add(rare: &[Rare], sums: &mut [f32; PANEL_ROWS], x: impl Fn(usize) -> f32) {
    for weight in rare {
        sums[usize::from(weight.lane)] += weight.value() * x(weight.column as usize);
    }
}

/// Rare weights as members find them.
#[derive(Default)]
pub(super) struct Found(Mutex<Vec<(usize, Vec<Rare>)>>);

impl Found {
    /// Takes in what was found in some lanes of a panel.
    pub fn take(&self, panel: usize, rare: Vec<Rare>) {
        if !rare.is_empty() {
            self.0.lock().unwrap_or_else(|e| e.into_inner()).push((panel, rare));
        }
    }

    /// All of them, in the one order that does not depend on who found what.
    pub fn sort(self, panels: usize) -> RareWeights {
        let mut found = self.0.into_inner().unwrap_or_else(|e| e.into_inner());
        if found.is_empty() {
            return RareWeights::default();
        }
        found.sort_by_key(|(panel, rare)| (*panel, rare[0].lane));
        let mut rare = RareWeights { list: Vec::new(), ends: vec![0; panels] };
        for (panel, own) in found {
            rare.list.extend(own);
            rare.ends[panel] = rare.list.len();
        }
        for panel in 1..panels {
            rare.ends[panel] = rare.ends[panel].max(rare.ends[panel - 1]);
        }
        rare
    }
}
