//! A graph that also outputs what its matrix products read, for importance matrices. Knows no backend.

use mambo_kernel::Op;

use crate::graph::{Graph, ValueId};

/// What one weight is multiplied with, as outputs of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Canonical name of the weight.
    pub weight: String,
    /// Columns of the rows.
    pub cols: usize,
    /// Output that holds the rows, an index into [`Graph::outputs`].
    pub rows: usize,
    /// Rows per token.
    pub rows_per_token: usize,
    /// For experts, which of them read what.
    pub experts: Option<ObservedExperts>,
}

/// Which experts a token was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedExperts {
    /// Output that holds the experts' numbers, an index into [`Graph::outputs`].
    pub ids: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Experts in the weight.
    pub count: usize,
}

impl Graph {
    /// The same graph, with the inputs of every product among its outputs, and where each is found.
    pub fn observed(&self) -> (Graph, Vec<Observed>) {
        let mut graph = self.clone();
        let mut found = Vec::new();
        for node in &self.nodes {
            let experts = match node.op {
                Op::Matmul { .. } => None,
                Op::MoeMatmul { experts, top_k, .. } => Some((experts, top_k)),
                _ => continue,
            };
            let value = self.value_type(node.inputs[0]);
            found.push(Observed {
                weight: self.weight(node.weights[0]).name.clone(),
                cols: value.cols,
                rows: show(&mut graph, node.inputs[0]),
                rows_per_token: value.rows.times,
                experts: experts.map(|(count, top_k)| ObservedExperts {
                    ids: show(&mut graph, node.inputs[1]),
                    top_k,
                    count,
                }),
            });
        }
        (graph, found)
    }
}

/// The output that holds a value, a new one if there is none yet.
fn show(graph: &mut Graph, value: ValueId) -> usize {
    if let Some(index) = graph.outputs.iter().position(|(_, shown)| *shown == value) {
        return index;
    }
    graph.outputs.push((format!("value_{}", value.index()), value));
    graph.outputs.len() - 1
}
