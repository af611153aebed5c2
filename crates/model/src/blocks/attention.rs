//! Grouped-query attention, with what families put around it.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Activation, Op};

use super::Layer;
use crate::names::{Part, Place};
use crate::spec::AttentionSpec;

/// `attention(u)`, with a KV layer of its own.
pub(crate) fn output(layer: &mut Layer, spec: &AttentionSpec, u: ValueId) -> Result<ValueId, GraphError> {
    let a = spec.dims();
    let kv = layer.graph.kv_layer(a);
    let mut q = layer.matmul("q", u, a.q_heads * a.head_dim)?;
    let mut k = layer.matmul("k", u, a.kv_heads * a.head_dim)?;
    let mut v = layer.matmul("v", u, a.kv_heads * a.head_dim)?;
    if spec.qkv_bias {
        q = layer.bias("q_bias", q)?;
        k = layer.bias("k_bias", k)?;
        v = layer.bias("v_bias", v)?;
    }
    if spec.qk_norm {
        q = layer.head_norm("q_norm", q, a.head_dim)?;
        k = layer.head_norm("k_norm", k, a.head_dim)?;
    }
    if let Some(rope) = spec.rope {
        // One weight serves all layers.
        let factors = Place::Model.canonical(Part::RopeFactors);
        let factors = rope.has_factors.then(|| layer.graph.weight(factors, [rope.rotary / 2]));
        let factors: Vec<_> = factors.into_iter().collect();
        q = layer.op(Op::Rope(rope), "q_rope", &[q], &factors)?;
        k = layer.op(Op::Rope(rope), "k_rope", &[k], &factors)?;
    }
    let sinks = spec.attention.sinks.then(|| layer.weight("sinks", &[a.q_heads]));
    let sinks: Vec<_> = sinks.into_iter().collect();
    let label = layer.name("attention");
    let mut y = layer.graph.op1(Op::Attention(spec.attention), label, &[q, k, v], &sinks, Some(kv))?;
    if spec.gated {
        let gate = layer.matmul("q_gate", u, a.q_heads * a.head_dim)?;
        y = layer.glu("gated", Activation::Sigmoid, gate, y)?;
    }
    let out = layer.matmul("o", y, layer.hidden)?;
    if spec.o_bias { layer.bias("o_bias", out) } else { Ok(out) }
}
