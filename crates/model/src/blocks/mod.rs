//! The blocks a graph is made of, one file each; each adds its mixer's result to a sum, which is the residual stream
//! unless a norm comes in between.
//!
//! Must not know which layer stands where.

pub(crate) mod attention;
pub(crate) mod delta_net;
pub(crate) mod mamba2;
pub(crate) mod moe;
pub(crate) mod mtp;
pub(crate) mod short_conv;

use mambo_graph::{GraphBuilder, GraphError, ValueId, WeightId};
use mambo_kernel::{Activation, Epilogue, Op};

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

    /// A vector of this name added to rows.
    pub fn bias(&mut self, part: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let cols = self.graph.value_type(x).cols;
        let weight = self.weight(part, &[cols]);
        self.op(Op::Bias, part, &[x], &[weight])
    }

    /// The norm of this name over every head.
    pub fn head_norm(&mut self, part: &str, x: ValueId, head_dim: usize) -> Result<ValueId, GraphError> {
        let weight = self.weight(part, &[head_dim]);
        self.op(Op::HeadNorm { head_dim, eps: self.eps }, part, &[x], &[weight])
    }

    /// `activation(gate) · x`, labelled.
    pub fn glu(
        &mut self,
        part: &str,
        activation: Activation,
        gate: ValueId,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        self.op(Op::Glu(activation), part, &[gate, x], &[])
    }

    /// A feed-forward part with the weights `{prefix}up`, `{prefix}down` and, where it has a gate, `{prefix}gate`.
    pub fn feed_forward(
        &mut self,
        prefix: &str,
        x: ValueId,
        width: usize,
        gate: Option<Activation>,
    ) -> Result<ValueId, GraphError> {
        let name = |part: &str| format!("{prefix}{part}");
        let active = match gate {
            None => {
                let up = self.matmul(&name("up"), x, width)?;
                self.op(Op::Relu2, &name("relu2"), &[up], &[])?
            }
            Some(activation) => {
                let gate = self.matmul(&name("gate"), x, width)?;
                let up = self.matmul(&name("up"), x, width)?;
                self.glu(&name("glu"), activation, gate, up)?
            }
        };
        self.matmul(&name("down"), active, self.hidden)
    }

    /// A sum with one more term; the term itself where there is none yet.
    pub fn add_to(&mut self, sum: Option<ValueId>, part: &str, term: ValueId) -> Result<ValueId, GraphError> {
        match sum {
            Some(sum) => self.op(Op::Add, part, &[sum, term], &[]),
            None => Ok(term),
        }
    }
}
