//! Grouped-query attention without position signal.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Attention, AttentionDims, Op};

use super::Layer;

/// `x + attention(u)`, with a KV layer of its own.
pub(crate) fn add(
    layer: &mut Layer,
    a: &AttentionDims,
    x: ValueId,
    u: ValueId,
) -> Result<ValueId, GraphError> {
    let kv = layer.graph.kv_layer(*a);
    let q = layer.matmul("q", u, a.q_heads * a.head_dim)?;
    let k = layer.matmul("k", u, a.kv_heads * a.head_dim)?;
    let v = layer.matmul("v", u, a.kv_heads * a.head_dim)?;
    let label = layer.name("attention");
    let y = layer.graph.op1(Op::Attention(Attention::plain(*a)), label, &[q, k, v], &[], Some(kv))?;
    let out = layer.matmul("o", y, layer.hidden)?;
    layer.add("add", x, out)
}
