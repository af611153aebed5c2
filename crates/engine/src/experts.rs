//! How often each expert of each layer was chosen, counted from the routes of every step while somebody watches.

use mambo_kernel::{Fetch, Op, Program, StepResults};

use crate::engine::Engine;

/// Where a program shows the experts that one layer chose.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    output: usize,
    label: String,
    experts: usize,
}

/// How often the experts of one layer were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertCounts {
    /// The op that chose, such as `layers.3.route`.
    pub label: String,
    /// By expert.
    pub counts: Vec<u64>,
}

/// The routes that a program shows.
pub(crate) fn routes(program: &Program) -> Vec<Route> {
    let route = |call: &mambo_kernel::Call| match call.op {
        Op::MoeRoute(dims) => {
            let output = program.output(&call.label)?;
            Some(Route { output, label: call.label.clone(), experts: dims.experts })
        }
        _ => None,
    };
    program.calls.iter().filter_map(route).collect()
}

/// What is counted, and since when there is anybody to tell.
#[derive(Debug, Default)]
pub(crate) struct ExpertWatch {
    routes: Vec<Route>,
    /// None where nobody watches.
    counts: Option<Vec<Vec<u64>>>,
}

impl ExpertWatch {
    pub fn new(routes: Vec<Route>) -> ExpertWatch {
        ExpertWatch { routes, counts: None }
    }

    fn zeros(&self) -> Vec<Vec<u64>> {
        self.routes.iter().map(|route| vec![0; route.experts]).collect()
    }

    /// Has the routes of a step of so many tokens fetched; where they come among the fetched rows.
    pub fn fetch(&self, tokens: usize, fetch: &mut Vec<Fetch>) -> Option<usize> {
        self.counts.as_ref()?;
        let first = fetch.len();
        fetch.extend(self.routes.iter().map(|route| Fetch { output: route.output, rows: 0..tokens as u32 }));
        Some(first)
    }

    /// Counts the routes of a step that has ended.
    pub fn count(&mut self, first: Option<usize>, results: &StepResults) {
        let (Some(first), Some(counts)) = (first, &mut self.counts) else { return };
        for (counts, chosen) in counts.iter_mut().zip(&results.rows[first..]) {
            chosen.iter().for_each(|expert| counts[*expert as usize] += 1);
        }
    }
}

impl Engine {
    /// Starts or stops counting how often each expert is chosen; nothing is fetched for it while it is off.
    pub fn watch_experts(&mut self, on: bool) {
        self.experts.counts = on.then(|| self.experts.zeros());
    }

    /// How often each expert was chosen since counting began or this was last asked, layer by layer; nothing where
    /// nobody watches or the engine was loaded without.
    pub fn take_expert_counts(&mut self) -> Vec<ExpertCounts> {
        let zeros = self.experts.zeros();
        let Some(counts) = &mut self.experts.counts else { return Vec::new() };
        let counts = std::mem::replace(counts, zeros);
        let labels = self.experts.routes.iter().map(|route| route.label.clone());
        labels.zip(counts).map(|(label, counts)| ExpertCounts { label, counts }).collect()
    }
}
