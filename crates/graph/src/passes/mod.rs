//! The rewrite passes, in order. Each is one file, checked by the verifier after it ran; which kernels a
//! backend has reaches a pass only as a yes or no.

mod drop_dead;
mod edit;
mod fuse_glu;
mod fuse_relu2;
mod fuse_residual;
mod fuse_ssm_step;
mod narrow_head;

use std::fmt;

use mambo_kernel::{Op, Phase};

use crate::error::GraphError;
use crate::graph::Graph;

/// What a pass may know besides the graph.
#[derive(Clone, Copy)]
pub struct PassContext<'a> {
    /// What the program is for.
    pub phase: Phase,
    /// Whether the backend has a row for a fused op.
    pub offers: &'a dyn Fn(&Op) -> bool,
}

/// One rewrite.
pub struct Pass {
    /// Name of the pass and of its file.
    pub name: &'static str,
    /// What it does, in one line.
    pub what: &'static str,
    /// The rewrite.
    pub run: fn(&Graph, &PassContext) -> Graph,
}

/// Every pass, in the order they run.
pub const PASSES: &[Pass] = &[
    Pass { name: "drop_dead", what: "drop nodes and weights that are never read", run: drop_dead::run },
    Pass { name: "narrow_head", what: "run the head on wanted rows only", run: narrow_head::run },
    Pass { name: "fuse_relu2", what: "square inside the up projection", run: fuse_relu2::run },
    Pass { name: "fuse_glu", what: "gate inside the up projection", run: fuse_glu::run },
    Pass {
        name: "fuse_residual",
        what: "add the residual inside the down projection",
        run: fuse_residual::run,
    },
    Pass { name: "fuse_ssm_step", what: "one kernel for the Mamba-2 decode step", run: fuse_ssm_step::run },
];

/// What an observer sees after each pass; prints as its text, or as SAME where nothing changed.
#[derive(Clone, Copy)]
pub struct PassReport<'a> {
    /// The pass that ran.
    pub pass: &'a Pass,
    /// The graph after it.
    pub graph: &'a Graph,
    /// Whether it changed anything.
    pub changed: bool,
}

impl fmt::Display for PassReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pass { name, what, .. } = self.pass;
        match self.changed {
            true => write!(f, "== {name}: {what}\n{}", self.graph),
            false => writeln!(f, "== {name}: SAME"),
        }
    }
}

/// Runs every pass, verifies after each, and shows each result to the observer.
pub fn run_passes(
    graph: &Graph,
    context: &PassContext,
    observer: &mut dyn FnMut(PassReport),
) -> Result<Graph, GraphError> {
    let mut graph = graph.clone();
    for pass in PASSES {
        let next = (pass.run)(&graph, context);
        next.verify().map_err(|e| GraphError::Pass { pass: pass.name, problem: e.to_string() })?;
        let changed = next != graph;
        graph = next;
        observer(PassReport { pass, graph: &graph, changed });
    }
    Ok(graph)
}

#[cfg(test)]
mod testing {
    //! Runs one pass over a printed graph, as the snapshot of each pass does.

    use super::*;

    /// The text of the graph after the pass; every fused op is offered.
    pub fn run_text(pass: fn(&Graph, &PassContext) -> Graph, phase: Phase, text: &str) -> String {
        run_offered(pass, phase, text, true)
    }

    /// The same where the backend offers every fused op or none.
    pub fn run_offered(
        pass: fn(&Graph, &PassContext) -> Graph,
        phase: Phase,
        text: &str,
        offered: bool,
    ) -> String {
        let graph: Graph = text.parse().expect("the test graph is valid");
        let after = pass(&graph, &PassContext { phase, offers: &|_| offered });
        after.verify().expect("the pass keeps the graph valid");
        let again = pass(&after, &PassContext { phase, offers: &|_| offered });
        assert_eq!(after, again, "a second run finds nothing more");
        after.to_string()
    }
}
