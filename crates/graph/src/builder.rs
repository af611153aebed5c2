//! Builds a graph node by node; a node that does not fit is refused where it is made.

use mambo_kernel::{AttentionDims, Op, SsmDims, ValueType};

use crate::error::GraphError;
use crate::graph::{Graph, Input, Node, ValueId, WeightDecl, WeightId};
use crate::infer::infer_node;
use crate::verify::check_cache;

/// Builds a [`Graph`] in execution order.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// Starts an empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        GraphBuilder { graph: Graph::new(name) }
    }

    /// The value of an input; asking twice gives the same value.
    pub fn input(&mut self, input: Input) -> ValueId {
        if let Some((value, _)) = self.graph.inputs.iter().find(|(_, i)| *i == input) {
            return *value;
        }
        let value = self.define(input.value_type());
        self.graph.inputs.push((value, input));
        value
    }

    /// Declares a weight by canonical name and shape, outermost first; declaring it twice with the same
    /// shape gives the same weight.
    pub fn weight(&mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) -> WeightId {
        let decl = WeightDecl { name: name.into(), shape: shape.into() };
        let found = self.graph.weights.iter().position(|w| *w == decl);
        let index = found.unwrap_or_else(|| {
            self.graph.weights.push(decl);
            self.graph.weights.len() - 1
        });
        WeightId(index as u32)
    }

    /// Declares the cache of the next attention layer.
    pub fn kv_layer(&mut self, dims: AttentionDims) -> usize {
        self.graph.kv_layers.push(dims);
        self.graph.kv_layers.len() - 1
    }

    /// Declares the cache of the next Mamba-2 layer.
    pub fn state_layer(&mut self, dims: SsmDims) -> usize {
        self.graph.state_layers.push(dims);
        self.graph.state_layers.len() - 1
    }

    /// The type of a value.
    pub fn value_type(&self, value: ValueId) -> ValueType {
        self.graph.value_type(value)
    }

    /// Adds a node and returns its outputs in port order.
    pub fn node(
        &mut self,
        op: Op,
        label: impl Into<String>,
        inputs: &[ValueId],
        weights: &[WeightId],
        cache: Option<usize>,
    ) -> Result<Vec<ValueId>, GraphError> {
        let label = label.into();
        let undefined = |what: String| GraphError::Undefined { place: format!("node `{label}`"), what };
        let types = inputs
            .iter()
            .map(|v| self.graph.types.get(v.index()).copied().ok_or_else(|| undefined(v.to_string())))
            .collect::<Result<Vec<_>, _>>()?;
        let decls = weights
            .iter()
            .map(|w| self.graph.weights.get(w.index()).ok_or_else(|| undefined(format!("weight {}", w.0))))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = infer_node(&op, &label, &types, &decls)?;
        check_cache(&self.graph, &op, &label, cache)?;
        let outputs: Vec<_> = outputs.into_iter().map(|t| self.define(t)).collect();
        let node = Node {
            op,
            inputs: inputs.to_vec(),
            weights: weights.to_vec(),
            cache,
            outputs: outputs.clone(),
            label,
        };
        self.graph.nodes.push(node);
        Ok(outputs)
    }

    /// Adds a node of an op with one output.
    pub fn op1(
        &mut self,
        op: Op,
        label: impl Into<String>,
        inputs: &[ValueId],
        weights: &[WeightId],
        cache: Option<usize>,
    ) -> Result<ValueId, GraphError> {
        let label = label.into();
        let outputs = self.node(op, label.clone(), inputs, weights, cache)?;
        match outputs[..] {
            [output] => Ok(output),
            _ => Err(GraphError::Count {
                label,
                op: op.kind().name(),
                what: "outputs",
                want: outputs.len(),
                got: 1,
            }),
        }
    }

    /// Names a value the caller reads.
    pub fn output(&mut self, name: impl Into<String>, value: ValueId) {
        self.graph.outputs.push((name.into(), value));
    }

    /// The finished graph, verified.
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.graph.verify()?;
        Ok(self.graph)
    }

    fn define(&mut self, value_type: ValueType) -> ValueId {
        self.graph.types.push(value_type);
        ValueId(self.graph.types.len() as u32 - 1)
    }
}
