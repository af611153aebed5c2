//! Weights that a format cannot represent: they are kept in a list beside the panels, and their products are added
//! after all others, in order of lane and column.

use std::sync::Mutex;

use super::format::PANEL_ROWS;

/// A weight that its panel stores as zero.
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
            column: u32::try_from(column).expect("a column index fits in 32 bits"),
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
    /// The end of each panel's outliers in the list; empty if no panel has any.
    ends: Vec<usize>,
}

impl Outliers {
    /// The outliers of a panel.
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

/// Adds the products of outliers to the sums of a panel. `x` gives the row's value in a column.
#[inline(always)]
pub(crate) fn add(outliers: &[Outlier], sums: &mut [f32; PANEL_ROWS], x: impl Fn(usize) -> f32) {
    for weight in outliers {
        sums[usize::from(weight.lane)] += weight.value() * x(weight.column as usize);
    }
}

/// Outliers found so far, by all threads.
#[derive(Default)]
pub(super) struct Found(Mutex<Vec<(usize, Vec<Outlier>)>>);

impl Found {
    /// Records the outliers of some lanes of a panel.
    pub fn take(&self, panel: usize, outliers: Vec<Outlier>) {
        if !outliers.is_empty() {
            self.0.lock().unwrap_or_else(|e| e.into_inner()).push((panel, outliers));
        }
    }

    /// All outliers in an order that does not depend on which thread found them.
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
