//! A graph as text that `parse` reads back to an equal graph. One line per declaration and node.

use std::fmt;

use mambo_kernel::{CacheKind, ValueType};

use crate::graph::{Graph, Node, ValueId};
use crate::op_text::{Layer, attention_sizes, parameters, ssm_sizes};

/// Column at which labels start, so that they line up beside most nodes.
const LABEL_COLUMN: usize = 72;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for weight in &self.weights {
            writeln!(f, "weight {} {:?}", weight.name, weight.shape)?;
        }
        for (i, dims) in self.kv_layers.iter().enumerate() {
            writeln!(f, "kv {i}{}", attention_sizes(dims))?;
        }
        for (i, dims) in self.state_layers.iter().enumerate() {
            writeln!(f, "state {i}{}", ssm_sizes(dims))?;
        }
        for (value, input) in &self.inputs {
            writeln!(f, "{value} = input {} : {}", input.name(), self.value_type(*value))?;
        }
        for node in &self.nodes {
            writeln!(f, "{:LABEL_COLUMN$} ; {}", node_text(self, node), node.label)?;
        }
        for (name, value) in &self.outputs {
            writeln!(f, "output {name} {value}")?;
        }
        Ok(())
    }
}

fn node_text(graph: &Graph, node: &Node) -> String {
    let (layer, cache) = match (node.op.cache(), node.cache) {
        (Some(CacheKind::Kv), Some(i)) => {
            (graph.kv_layers.get(i).map_or(Layer::None, |d| Layer::Kv(*d)), format!(" @kv{i}"))
        }
        (_, Some(i)) => {
            (graph.state_layers.get(i).map_or(Layer::None, |d| Layer::State(*d)), format!(" @state{i}"))
        }
        (_, None) => (Layer::None, String::new()),
    };
    let list = |values: &[ValueId]| values.iter().map(ValueId::to_string).collect::<Vec<_>>();
    let types: Vec<_> = node
        .outputs
        .iter()
        .map(|v| graph.types.get(v.index()).map_or("?".into(), ValueType::to_string))
        .collect();
    let mut text = format!(
        "{} = {}{}",
        list(&node.outputs).join(", "),
        node.op.kind().name(),
        parameters(&node.op, layer)
    );
    for input in list(&node.inputs) {
        text += &format!(" {input}");
    }
    for weight in &node.weights {
        text += &format!(" ${}", graph.weights.get(weight.index()).map_or("?", |w| &w.name));
    }
    text + &cache + " : " + &types.join(", ")
}
