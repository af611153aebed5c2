//! The mixture of experts: routed experts, possibly in a narrower latent space, and a shared one.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Epilogue, Op};

use super::Layer;
use crate::spec::MoeSpec;

/// `(x + routed(u)) + shared(u)`: two sums, so that each can join the product before it.
pub(crate) fn add(layer: &mut Layer, m: &MoeSpec, x: ValueId, u: ValueId) -> Result<ValueId, GraphError> {
    let routed = routed(layer, m, u)?;
    let x = layer.add("routed_add", x, routed)?;
    let Some(width) = m.shared_width else { return Ok(x) };
    let shared = layer.relu2_mlp(["shared_up", "shared_relu2", "shared_down"], u, width)?;
    layer.add("shared_add", x, shared)
}

fn routed(layer: &mut Layer, m: &MoeSpec, u: ValueId) -> Result<ValueId, GraphError> {
    let (experts, top_k, io) = (m.route.experts, m.route.top_k, m.io_width(layer.hidden));
    // The router reads the full width also where the experts do not.
    let scores = layer.matmul("router", u, experts)?;
    let bias = layer.weight("router_bias", &[experts]);
    let label = layer.name("route");
    let route = layer.graph.node(Op::MoeRoute(m.route), label, &[scores], &[bias], None)?;
    let [ids, weights] = route[..] else { unreachable!("moe_route has two outputs") };

    let h = if m.latent.is_some() { layer.matmul("latent_down", u, io)? } else { u };
    let up = expert_matmul(layer, m, "experts_up", [h, ids], m.expert_width)?;
    let active = layer.op(Op::Relu2, "experts_relu2", &[up], &[])?;
    let down = expert_matmul(layer, m, "experts_down", [active, ids], io)?;
    let op = Op::MoeCombine { top_k, residual: false };
    let sum = layer.op(op, "combine", &[down, weights], &[])?;
    if m.latent.is_some() { layer.matmul("latent_up", sum, layer.hidden) } else { Ok(sum) }
}

fn expert_matmul(
    layer: &mut Layer,
    m: &MoeSpec,
    part: &str,
    inputs: [ValueId; 2],
    out: usize,
) -> Result<ValueId, GraphError> {
    let cols = layer.graph.value_type(inputs[0]).cols;
    let weight = layer.weight(part, &[m.route.experts, out, cols]);
    let (experts, top_k) = (m.route.experts, m.route.top_k);
    let op = Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None };
    layer.op(op, part, &inputs, &[weight])
}
