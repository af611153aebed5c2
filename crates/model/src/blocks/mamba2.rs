//! The Mamba-2 mixer: project, convolve, scan, gate and normalise, project back.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Activation, Op};

use super::Layer;
use crate::spec::Mamba2Spec;

/// `mamba2(u)`.
pub(crate) fn output(layer: &mut Layer, spec: &Mamba2Spec, u: ValueId) -> Result<ValueId, GraphError> {
    let d = &spec.dims;
    let (inner, conv, heads) = (d.inner(), d.conv_dim(), d.heads);
    let state = Some(layer.graph.state_layer(*d));
    let projected = layer.matmul("in_proj", u, d.in_proj())?;
    let mut split = |start, len, part| layer.op(Op::Split { start, len }, part, &[projected], &[]);
    let z = split(0, inner, "z")?;
    let xbc = split(inner, conv, "xbc")?;
    let dt = split(inner + conv, heads, "dt_raw")?;

    let weights = [layer.weight("conv_weight", &[conv, d.taps]), layer.weight("conv_bias", &[conv])];
    let label = layer.name("conv");
    let xbc = layer.graph.op1(Op::SsmConv(*d), label, &[xbc], &weights, state)?;
    let bias = layer.weight("dt_bias", &[heads]);
    let dt = layer.op(Op::SsmDt, "dt", &[dt], &[bias])?;
    let weights = [layer.weight("a", &[heads]), layer.weight("d", &[heads])];
    let label = layer.name("scan");
    let y = layer.graph.op1(Op::SsmScan(*d), label, &[xbc, dt], &weights, state)?;

    let gated = match spec.norm_groups {
        Some(groups) => {
            let weight = layer.weight("ssm_norm", &[inner]);
            let op = Op::GatedGroupNorm { groups, eps: layer.eps };
            layer.op(op, "ssm_norm", &[y, z], &[weight])?
        }
        None => layer.glu("ssm_gate", Activation::Silu, z, y)?,
    };
    layer.matmul("out_proj", gated, layer.hidden)
}
