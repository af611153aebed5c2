//! The gated delta net: project, convolve, scan, normalise, gate, project back.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Activation, Op, SsmDims};

use super::Layer;

/// `delta_net(u)`.
pub(crate) fn output(layer: &mut Layer, d: &SsmDims, u: ValueId) -> Result<ValueId, GraphError> {
    let (inner, conv, heads) = (d.inner(), d.conv_dim(), d.heads);
    let state = Some(layer.graph.state_layer(*d));
    let qkv = layer.matmul("qkv", u, conv)?;
    let z = layer.matmul("z", u, inner)?;
    let strength = layer.matmul("strength", u, heads)?;
    let decay = layer.matmul("decay", u, heads)?;
    let weights = [layer.weight("conv_weight", &[conv, d.taps]), layer.weight("conv_bias", &[conv])];
    let label = layer.name("conv");
    let qkv = layer.graph.op1(Op::SsmConv(*d), label, &[qkv], &weights, state)?;
    let weights = [layer.weight("a", &[heads]), layer.weight("dt_bias", &[heads])];
    let label = layer.name("scan");
    let y = layer.graph.op1(Op::DeltaScan(*d), label, &[qkv, strength, decay], &weights, state)?;
    let normed = layer.head_norm("ssm_norm", y, d.head_dim)?;
    let gated = layer.glu("ssm_gate", Activation::Silu, z, normed)?;
    layer.matmul("out_proj", gated, layer.hidden)
}
