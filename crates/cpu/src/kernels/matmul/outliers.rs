//! Weights that a format cannot hold: they stand in a list beside the panels, and their products are added
//! when all others are summed, in the order of lanes and columns.

use std::sync::Mutex;

use super::format::PANEL_ROWS;

/// A weight that its panel counts as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outlier {
    column: u32,
    /// Row of the panel.
    lane: u16,
    bf16: u16,
}

impl Outlier {
    pub fn new(lane: usize, column: usize, bf16: u16) -> Outlier {
        Outlier {
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

/// The outliers of all panels.
#[derive(Default)]
pub(crate) struct Outliers {
    list: Vec<Outlier>,
    /// Where each panel's end in the list; empty if no panel has any.
    ends: Vec<usize>,
}

impl Outliers {
    /// The weights of a panel.
    #[inline(always)]
    pub fn of(&self, panel: usize) -> &[Outlier] {
        let Some(&end) = self.ends.get(panel) else { return &[] };
        &self.list[if panel == 0 { 0 } else { self.ends[panel - 1] }..end]
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.list.len() * size_of::<Outlier>() + self.ends.len() * size_of::<usize>()
    }
}

/// Adds the products of outliers to the sums of a panel. `x` is the row's value in a column.
#[inline(always)]
pub(crate) fn add(outliers: &[Outlier], sums: &mut [f32; PANEL_ROWS], x: impl Fn(usize) -> f32) {
    for weight in outliers {
        sums[usize::from(weight.lane)] += weight.value() * x(weight.column as usize);
    }
}

/// Outlier weights as threads find them.
#[derive(Default)]
pub(super) struct Found(Mutex<Vec<(usize, Vec<Outlier>)>>);

impl Found {
    /// Takes in what was found in some lanes of a panel.
    pub fn take(&self, panel: usize, outliers: Vec<Outlier>) {
        if !outliers.is_empty() {
            self.0.lock().unwrap_or_else(|e| e.into_inner()).push((panel, outliers));
        }
    }

    /// All of them, in the one order that does not depend on who found what.
    pub fn sort(self, panels: usize) -> Outliers {
        let mut found = self.0.into_inner().unwrap_or_else(|e| e.into_inner());
        if found.is_empty() {
            return Outliers::default();
        }
        found.sort_by_key(|(panel, outliers)| (*panel, outliers[0].lane));
        let mut outliers = Outliers { list: Vec::new(), ends: vec![0; panels] };
        for (panel, own) in found {
            outliers.list.extend(own);
            outliers.ends[panel] = outliers.list.len();
        }
        for panel in 1..panels {
            outliers.ends[panel] = outliers.ends[panel].max(outliers.ends[panel - 1]);
        }
        outliers
    }
}
