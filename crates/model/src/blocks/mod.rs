//! The blocks a graph is made of, one file each; each adds its mixer's result to the residual stream.
//!
//! Must not know which layer stands where.

pub(crate) mod attention;
pub(crate) mod mamba2;
pub(crate) mod mlp;
pub(crate) mod moe;
pub(crate) mod mtp;

use mambo_graph::{GraphBuilder, GraphError, ValueId, WeightId};
use mambo_kernel::{Epilogue, Op};

/// A place in the model under construction: weights and labels get its name as prefix.
pub(crate) struct Layer<'g> {
    pub graph: &'g mut GraphBuilder,
    prefix: String,
    pub hidden: usize,
    pub eps: f32,
}

impl<'g> Layer<'g> {
    pub fn new(graph: &'g mut GraphBuilder, prefix: String, hidden: usize, eps: f32) -> Self {
        Layer { graph, prefix, hidden, eps }
    }

    /// The full name of something here.
    pub fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    pub fn weight(&mut self, part: &str, shape: &[usize]) -> WeightId {
        let name = self.name(part);
        self.graph.weight(name, shape)
    }

    /// An op without cache, labelled with its part.
    pub fn op(
        &mut self,
        op: Op,
        part: &str,
        inputs: &[ValueId],
        weights: &[WeightId],
    ) -> Result<ValueId, GraphError> {
        let label = self.name(part);
        self.graph.op1(op, label, inputs, weights, None)
    }

    /// The norm of this name over the hidden width.
    pub fn norm(&mut self, part: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let weight = self.weight(part, &[self.hidden]);
        self.op(Op::RmsNorm { eps: self.eps }, part, &[x], &[weight])
    }

    /// The projection of this name.
    pub fn matmul(&mut self, part: &str, x: ValueId, out: usize) -> Result<ValueId, GraphError> {
        let cols = self.graph.value_type(x).cols;
        let weight = self.weight(part, &[out, cols]);
        self.op(Op::Matmul { out, epilogue: Epilogue::None }, part, &[x], &[weight])
    }

    /// `down(relu(up(x))²)` with these names of the two projections and of the square between them.
    pub fn relu2_mlp(
        &mut self,
        [up, relu2, down]: [&str; 3],
        x: ValueId,
        width: usize,
    ) -> Result<ValueId, GraphError> {
        let up_rows = self.matmul(up, x, width)?;
        let active = self.op(Op::Relu2, relu2, &[up_rows], &[])?;
        self.matmul(down, active, self.hidden)
    }

    /// The residual stream with a mixer's result added.
    pub fn add(&mut self, part: &str, x: ValueId, y: ValueId) -> Result<ValueId, GraphError> {
        self.op(Op::Add, part, &[x, y], &[])
    }
}
