//! A small hybrid built by hand: one Mamba-2, one attention, one MoE and one MLP layer, then the head.

use mambo_graph::{Graph, GraphBuilder, GraphError, Input, ValueId};
use mambo_kernel::{Attention, AttentionDims, Epilogue, Op, RouteDims, Scoring, SsmDims};

const WIDTH: usize = 64;
const EPS: f32 = 1e-5;

/// The hybrid, unfused.
pub fn graph() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("hybrid");
    let ids = b.input(Input::TokenIds);
    let wanted = b.input(Input::Wanted);
    let table = b.weight("embed", [96, WIDTH]);
    let x = b.op1(Op::Embed, "embed", &[ids], &[table], None)?;
    let x = mamba(&mut b, 0, x)?;
    let x = attention(&mut b, 1, x)?;
    let x = moe(&mut b, 2, x)?;
    let x = mlp(&mut b, 3, x)?;
    let norm = b.weight("norm", [WIDTH]);
    let x = b.op1(Op::RmsNorm { eps: EPS }, "norm", &[x], &[norm], None)?;
    let logits = matmul(&mut b, "lm_head", x, WIDTH, 96)?;
    let logits = b.op1(Op::GatherRows, "wanted", &[logits, wanted], &[], None)?;
    b.output("logits", logits);
    b.finish()
}

fn matmul(
    b: &mut GraphBuilder,
    label: &str,
    x: ValueId,
    cols: usize,
    out: usize,
) -> Result<ValueId, GraphError> {
    let weight = b.weight(label, [out, cols]);
    b.op1(Op::Matmul { out, epilogue: Epilogue::None }, label, &[x], &[weight], None)
}

fn norm(b: &mut GraphBuilder, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let label = format!("layers.{layer}.norm");
    let weight = b.weight(&label, [WIDTH]);
    b.op1(Op::RmsNorm { eps: EPS }, label, &[x], &[weight], None)
}

fn add(b: &mut GraphBuilder, layer: usize, x: ValueId, y: ValueId) -> Result<ValueId, GraphError> {
    b.op1(Op::Add, format!("layers.{layer}.residual"), &[x, y], &[], None)
}

fn mamba(b: &mut GraphBuilder, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let d = SsmDims { heads: 4, head_dim: 32, state: 16, groups: 2, taps: 4 };
    let cache = Some(b.state_layer(d));
    let name = |part: &str| format!("layers.{layer}.{part}");
    let u = norm(b, layer, x)?;
    let p = matmul(b, &name("in_proj"), u, WIDTH, d.in_proj())?;
    let mut split = |part: &str, start, len| b.op1(Op::Split { start, len }, name(part), &[p], &[], None);
    let z = split("z", 0, d.inner())?;
    let xbc = split("xbc", d.inner(), d.conv_dim())?;
    let dt = split("dt", d.inner() + d.conv_dim(), d.heads)?;
    let conv = [b.weight(name("conv"), [d.conv_dim(), d.taps]), b.weight(name("conv_bias"), [d.conv_dim()])];
    let xbc = b.op1(Op::SsmConv(d), name("conv"), &[xbc], &conv, cache)?;
    let bias = b.weight(name("dt_bias"), [d.heads]);
    let dt = b.op1(Op::SsmDt, name("dt_bias"), &[dt], &[bias], None)?;
    let heads = [b.weight(name("a"), [d.heads]), b.weight(name("d"), [d.heads])];
    let y = b.op1(Op::SsmScan(d), name("scan"), &[xbc, dt], &heads, cache)?;
    let gated = b.weight(name("gated_norm"), [d.inner()]);
    let op = Op::GatedGroupNorm { groups: d.groups, eps: EPS };
    let y = b.op1(op, name("gated_norm"), &[y, z], &[gated], None)?;
    let y = matmul(b, &name("out_proj"), y, d.inner(), WIDTH)?;
    add(b, layer, x, y)
}

fn attention(b: &mut GraphBuilder, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let a = AttentionDims { q_heads: 4, kv_heads: 2, head_dim: 16 };
    let cache = Some(b.kv_layer(a));
    let name = |part: &str| format!("layers.{layer}.{part}");
    let u = norm(b, layer, x)?;
    let q = matmul(b, &name("q_proj"), u, WIDTH, a.q_heads * a.head_dim)?;
    let k = matmul(b, &name("k_proj"), u, WIDTH, a.kv_heads * a.head_dim)?;
    let v = matmul(b, &name("v_proj"), u, WIDTH, a.kv_heads * a.head_dim)?;
    let y = b.op1(Op::Attention(Attention::plain(a)), name("attention"), &[q, k, v], &[], cache)?;
    let y = matmul(b, &name("o_proj"), y, a.q_heads * a.head_dim, WIDTH)?;
    add(b, layer, x, y)
}

fn moe(b: &mut GraphBuilder, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let r = RouteDims {
        scoring: Scoring::Sigmoid,
        experts: 8,
        top_k: 2,
        groups: 1,
        top_groups: 1,
        normalize: true,
        scale: 2.5,
    };
    let (experts, top_k, epilogue) = (r.experts, r.top_k, Epilogue::None);
    let name = |part: &str| format!("layers.{layer}.{part}");
    let u = norm(b, layer, x)?;
    let gate = matmul(b, &name("router"), u, WIDTH, experts)?;
    let bias = b.weight(name("router_bias"), [experts]);
    let routed = b.node(Op::MoeRoute(r), name("route"), &[gate], &[bias], None)?;
    let up = b.weight(name("experts.up"), [experts, 96, WIDTH]);
    let op = Op::MoeMatmul { experts, top_k, out: 96, epilogue };
    let h = b.op1(op, name("experts.up"), &[u, routed[0]], &[up], None)?;
    let h = b.op1(Op::Relu2, name("experts.act"), &[h], &[], None)?;
    let down = b.weight(name("experts.down"), [experts, WIDTH, 96]);
    let op = Op::MoeMatmul { experts, top_k, out: WIDTH, epilogue };
    let h = b.op1(op, name("experts.down"), &[h, routed[0]], &[down], None)?;
    let op = Op::MoeCombine { top_k, residual: false };
    let y = b.op1(op, name("experts.sum"), &[h, routed[1]], &[], None)?;
    let x = add(b, layer, x, y)?;
    let s = matmul(b, &name("shared.up"), u, WIDTH, 128)?;
    let s = b.op1(Op::Relu2, name("shared.act"), &[s], &[], None)?;
    let s = matmul(b, &name("shared.down"), s, 128, WIDTH)?;
    add(b, layer, x, s)
}

fn mlp(b: &mut GraphBuilder, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let name = |part: &str| format!("layers.{layer}.{part}");
    let u = norm(b, layer, x)?;
    let h = matmul(b, &name("up"), u, WIDTH, 128)?;
    let h = b.op1(Op::Relu2, name("act"), &[h], &[], None)?;
    let y = matmul(b, &name("down"), h, 128, WIDTH)?;
    add(b, layer, x, y)
}
