//! A specification becomes a graph: the trunk, and the MTP head as a graph of its own.
//!
//! Must not know kernels or fusions: every op stands alone here, passes join them later.

use mambo_graph::{Graph, GraphBuilder, GraphError, Input, ValueId};
use mambo_kernel::Op;

use crate::blocks::{Layer, attention, delta_net, mamba2, moe, mtp, short_conv};
use crate::error::ModelError;
use crate::names::{Part, Place};
use crate::spec::{Half, Mixer, ModelSpec};

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
            for (number, half) in spec.halves.iter().enumerate() {
                x = residual_step(&mut layer, number, half, x)?;
            }
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
        let part = self.own_head().unwrap_or(Part::Embed);
        let weight = graph.weight(Place::Model.canonical(part), [self.vocab, self.hidden]);
        let rows = graph.op1(Op::GatherRows, "wanted", &[hidden, wanted], &[], None)?;
        let op = Op::Matmul { out: self.vocab, epilogue: mambo_kernel::Epilogue::None };
        let mut logits = graph.op1(op, "head", &[rows], &[weight], None)?;
        if let Some(cap) = self.logit_cap {
            logits = graph.op1(Op::SoftCap { cap }, "head_cap", &[logits], &[], None)?;
        }
        let token = graph.op1(Op::Choose, "choose", &[logits], &[], None)?;
        graph.output("logits", logits);
        graph.output("token", token);
        Ok(())
    }
}

/// `x + mixers(norm(x))`, with another norm before the sum where the half has one.
fn residual_step(layer: &mut Layer, number: usize, half: &Half, x: ValueId) -> Result<ValueId, GraphError> {
    let [before, after] = Half::norms(number).map(|part| part.names().canonical);
    let u = layer.norm(before, x)?;
    let mut sum = if half.post_norm { None } else { Some(x) };
    for mixer in &half.mixers {
        let name = match (half.mixers.len(), number) {
            (1, 0) => "add".to_owned(),
            (1, _) => "mlp_add".to_owned(),
            _ => format!("{}_add", mixer.name()),
        };
        let hidden = layer.hidden;
        let output = match mixer {
            Mixer::Mamba2(m) => mamba2::output(layer, m, u)?,
            Mixer::Attention(a) => attention::output(layer, a, u)?,
            Mixer::DeltaNet(d) => delta_net::output(layer, d, u)?,
            Mixer::ShortConv { .. } => {
                let dims = mixer.state(hidden).expect("a convolution keeps its columns");
                short_conv::output(layer, &dims, u)?
            }
            Mixer::Mlp(m) => layer.feed_forward("", u, m.width, m.gate)?,
            Mixer::Moe(m) => {
                sum = Some(moe::add(layer, m, sum, u)?);
                continue;
            }
        };
        sum = Some(layer.add_to(sum, &name, output)?);
    }
    let sum = sum.expect("a half has a mixer");
    if !half.post_norm {
        return Ok(sum);
    }
    let normed = layer.norm(after, sum)?;
    layer.add_to(Some(x), if number == 0 { "add" } else { "mlp_add" }, normed)
}
