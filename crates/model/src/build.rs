//! A specification becomes a graph: the trunk, and the MTP head as a graph of its own.
//!
//! Must not know kernels or fusions: every op stands alone here, passes join them later.

use mambo_graph::{Graph, GraphBuilder, GraphError, Input, ValueId};
use mambo_kernel::Op;

use crate::blocks::{Layer, attention, mamba2, mlp, moe, mtp};
use crate::error::ModelError;
use crate::spec::{Mixer, ModelSpec};

/// What a trunk graph gives besides logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Also the final-normed rows of all tokens, which an MTP head reads.
    pub hidden: bool,
}

impl ModelSpec {
    /// The trunk: token ids to the logits of the wanted rows.
    pub fn trunk_graph(&self, options: BuildOptions) -> Result<Graph, ModelError> {
        let bug = |e: GraphError| ModelError::Graph { graph: "trunk".to_owned(), problem: e.to_string() };
        self.trunk(options).map_err(bug)
    }

    /// The MTP head: token t+1 and the trunk's hidden row t to the logits of token t+2.
    ///
    /// Its caches are numbered in one layout with the trunk's, see [`ModelSpec::cache_layers`].
    pub fn mtp_graph(&self) -> Result<Graph, ModelError> {
        let bug = |e: GraphError| ModelError::Graph { graph: "mtp".to_owned(), problem: e.to_string() };
        let head = self.mtp.as_ref().ok_or(ModelError::NoMtp)?;
        mtp::build(self, head).map_err(bug)
    }

    fn trunk(&self, options: BuildOptions) -> Result<Graph, GraphError> {
        let mut graph = GraphBuilder::new("trunk");
        let tokens = graph.input(Input::TokenIds);
        let wanted = graph.input(Input::Wanted);
        let mut x = self.embed(&mut graph, tokens)?;
        for (index, spec) in self.layers.iter().enumerate() {
            let mut layer = Layer::new(&mut graph, format!("layers.{index}"), self.hidden, spec.norm_eps);
            let u = layer.norm("norm", x)?;
            x = match &spec.mixer {
                Mixer::Mamba2(d) => mamba2::add(&mut layer, d, x, u)?,
                Mixer::Attention(a) => attention::add(&mut layer, a, x, u)?,
                Mixer::Mlp { width } => mlp::add(&mut layer, *width, x, u)?,
                Mixer::Moe(m) => moe::add(&mut layer, m, x, u)?,
            };
        }
        let norm = graph.weight("final_norm", [self.hidden]);
        let hidden = graph.op1(Op::RmsNorm { eps: self.norm_eps }, "final_norm", &[x], &[norm], None)?;
        self.head(&mut graph, hidden, wanted)?;
        if options.hidden {
            graph.output("hidden", hidden);
        }
        graph.finish()
    }

    /// Rows of the embedding.
    pub(crate) fn embed(&self, graph: &mut GraphBuilder, tokens: ValueId) -> Result<ValueId, GraphError> {
        let table = graph.weight("embed", [self.vocab, self.hidden]);
        graph.op1(Op::Embed, "embed", &[tokens], &[table], None)
    }

    /// The outputs `logits` and `token` of the wanted rows.
    pub(crate) fn head(
        &self,
        graph: &mut GraphBuilder,
        hidden: ValueId,
        wanted: ValueId,
    ) -> Result<(), GraphError> {
        let name = if self.tied_embeddings { "embed" } else { "head" };
        let weight = graph.weight(name, [self.vocab, self.hidden]);
        let rows = graph.op1(Op::GatherRows, "wanted", &[hidden, wanted], &[], None)?;
        let op = Op::Matmul { out: self.vocab, epilogue: mambo_kernel::Epilogue::None };
        let logits = graph.op1(op, "head", &[rows], &[weight], None)?;
        let token = graph.op1(Op::Choose, "choose", &[logits], &[], None)?;
        graph.output("logits", logits);
        graph.output("token", token);
        Ok(())
    }
}
