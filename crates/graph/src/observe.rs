//! Graphs with more outputs: what matrix products read, for importance matrices, or what ops of one kind give. Knows no
//! backend.

use mambo_kernel::{Op, OpKind};

use crate::graph::{Graph, ValueId};

/// What one weight is multiplied with, as outputs of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Canonical name of the weight.
    pub weight: String,
    /// Columns of the rows.
    pub cols: usize,
    /// Name of the output that holds the rows.
    pub rows: String,
    /// Rows per token.
    pub rows_per_token: usize,
    /// For experts, which of them read what.
    pub experts: Option<ObservedExperts>,
}

/// Which experts a token was sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedExperts {
    /// Name of the output that holds the experts' numbers.
    pub ids: String,
    /// Experts per token.
    pub top_k: usize,
    /// Experts in the weight.
    pub count: usize,
}

impl Graph {
    /// The same graph, with the first value of every op of a kind among its outputs, under the op's label.
    pub fn showing(&self, kind: OpKind) -> Graph {
        let mut graph = self.clone();
        let shown = self.nodes.iter().filter(|node| node.op.kind() == kind);
        graph.outputs.extend(shown.map(|node| (node.label.clone(), node.outputs[0])));
        graph
    }

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

/// The name of the output that holds a value, a new one if there is none yet.
fn show(graph: &mut Graph, value: ValueId) -> String {
    if let Some((name, _)) = graph.outputs.iter().find(|(_, shown)| *shown == value) {
        return name.clone();
    }
    let name = format!("value_{}", value.index());
    graph.outputs.push((name.clone(), value));
    name
}
