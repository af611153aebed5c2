//! The mixture of experts: routed experts, possibly in a narrower latent space, and a shared one.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Epilogue, Op, RouteDims, Scoring};

use super::Layer;
use crate::spec::MoeSpec;

/// `(sum + routed(u)) + shared(u)`: two sums, so that each can join the product before it.
pub(crate) fn add(
    layer: &mut Layer,
    m: &MoeSpec,
    sum: Option<ValueId>,
    u: ValueId,
) -> Result<ValueId, GraphError> {
    let routed = routed(layer, m, u)?;
    let sum = layer.add_to(sum, "routed_add", routed)?;
    let Some(width) = m.shared_width else { return Ok(sum) };
    let shared = layer.feed_forward("shared_", u, width, m.gate)?;
    match m.shared_gate {
        false => layer.add_to(Some(sum), "shared_add", shared),
        true => gated_shared(layer, sum, u, shared),
    }
}

/// `sum + sigmoid(router(u)) · shared`: the shared expert as the only choice of a router of its own.
fn gated_shared(layer: &mut Layer, sum: ValueId, u: ValueId, shared: ValueId) -> Result<ValueId, GraphError> {
    let alone = RouteDims {
        scoring: Scoring::Sigmoid,
        experts: 1,
        top_k: 1,
        groups: 1,
        top_groups: 1,
        normalize: false,
        scale: 1.0,
    };
    let scores = layer.matmul("shared_router", u, 1)?;
    let [_, weights] = route(layer, alone, "shared_", scores)?;
    layer.op(Op::MoeCombine { top_k: 1, residual: true }, "shared_add", &[shared, weights, sum], &[])
}

/// Ids and weights of the chosen experts.
fn route(
    layer: &mut Layer,
    dims: RouteDims,
    prefix: &str,
    scores: ValueId,
) -> Result<[ValueId; 2], GraphError> {
    let bias = layer.weight(&format!("{prefix}router_bias"), &[dims.experts]);
    let label = layer.name(&format!("{prefix}route"));
    let route = layer.graph.node(Op::MoeRoute(dims), label, &[scores], &[bias], None)?;
    let [ids, weights] = route[..] else { unreachable!("moe_route has two outputs") };
    Ok([ids, weights])
}

fn routed(layer: &mut Layer, m: &MoeSpec, u: ValueId) -> Result<ValueId, GraphError> {
    let (experts, top_k, io) = (m.route.experts, m.route.top_k, m.io_width(layer.hidden));
    // The router reads the full width also where the experts do not.
    let mut scores = layer.matmul("router", u, experts)?;
    if m.biases {
        scores = layer.bias("router_offset", scores)?;
    }
    let [ids, weights] = route(layer, m.route, "", scores)?;

    let h = if m.latent.is_some() { layer.matmul("latent_down", u, io)? } else { u };
    let active = match m.gate {
        None => {
            let up = expert_matmul(layer, m, "experts_up", [h, ids], m.expert_width)?;
            layer.op(Op::Relu2, "experts_relu2", &[up], &[])?
        }
        Some(activation) => {
            let gate = expert_matmul(layer, m, "experts_gate", [h, ids], m.expert_width)?;
            let up = expert_matmul(layer, m, "experts_up", [h, ids], m.expert_width)?;
            layer.glu("experts_glu", activation, gate, up)?
        }
    };
    let down = expert_matmul(layer, m, "experts_down", [active, ids], io)?;
    let op = Op::MoeCombine { top_k, residual: false };
    let sum = layer.op(op, "combine", &[down, weights], &[])?;
    if m.latent.is_some() { layer.matmul("latent_up", sum, layer.hidden) } else { Ok(sum) }
}

fn expert_matmul(
    layer: &mut Layer,
    m: &MoeSpec,
    part: &str,
    [x, ids]: [ValueId; 2],
    out: usize,
) -> Result<ValueId, GraphError> {
    let cols = layer.graph.value_type(x).cols;
    let weight = layer.weight(part, &[m.route.experts, out, cols]);
    let (experts, top_k) = (m.route.experts, m.route.top_k);
    let op = Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None };
    let y = layer.op(op, part, &[x, ids], &[weight])?;
    if !m.biases {
        return Ok(y);
    }
    let part = format!("{part}_bias");
    let bias = layer.weight(&part, &[experts, out]);
    layer.op(Op::MoeBias { experts, top_k }, &part, &[y, ids], &[bias])
}
