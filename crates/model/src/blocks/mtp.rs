//! The multi-token prediction head: joins an embedding and a hidden row, then attention and experts.

use mambo_graph::{Graph, GraphBuilder, GraphError, Input};
use mambo_kernel::Op;

use super::{Layer, attention, moe};
use crate::spec::{AttentionSpec, ModelSpec, MtpSpec};

/// The head as a graph: token ids and hidden rows to `logits` of the wanted rows and `hidden` of all.
pub(crate) fn build(spec: &ModelSpec, head: &MtpSpec) -> Result<Graph, GraphError> {
    let mut graph = GraphBuilder::new("mtp");
    let tokens = graph.input(Input::TokenIds);
    let hidden = graph.input(Input::Hidden { cols: spec.hidden });
    let wanted = graph.input(Input::Wanted);
    // The trunk's layers come first in the one cache layout that both graphs share.
    for dims in spec.trunk_kv_layers() {
        graph.kv_layer(dims);
    }
    let embedded = spec.embed(&mut graph, tokens)?;
    let mut layer = Layer::new(&mut graph, "mtp".to_owned(), spec.hidden, head.norm_eps);
    let e = layer.norm("enorm", embedded)?;
    let h = layer.norm("hnorm", hidden)?;
    let joined = layer.op(Op::Concat, "join", &[e, h], &[])?;
    let x = layer.matmul("eh_proj", joined, spec.hidden)?;
    let u = layer.norm("attn_norm", x)?;
    let out = attention::output(&mut layer, &AttentionSpec::plain(head.attention), u)?;
    let x = layer.add_to(Some(x), "add", out)?;
    let u = layer.norm("moe_norm", x)?;
    let x = moe::add(&mut layer, &head.moe, Some(x), u)?;
    let out = layer.norm("final_norm", x)?;
    spec.head(&mut graph, out, wanted)?;
    graph.output("hidden", out);
    graph.finish()
}
