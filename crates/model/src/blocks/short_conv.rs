//! LFM2's gated convolution: project, convolve, project back.

use mambo_graph::{GraphError, ValueId};
use mambo_kernel::{Op, SsmDims};

use super::Layer;

/// `short_conv(u)`.
pub(crate) fn output(layer: &mut Layer, d: &SsmDims, u: ValueId) -> Result<ValueId, GraphError> {
    let channels = d.inner();
    let state = Some(layer.graph.state_layer(*d));
    let projected = layer.matmul("in_proj", u, 3 * channels)?;
    let weights = [layer.weight("conv_weight", &[channels, d.taps]), layer.weight("conv_bias", &[channels])];
    let label = layer.name("conv");
    let y = layer.graph.op1(Op::ShortConv(*d), label, &[projected], &weights, state)?;
    layer.matmul("out_proj", y, layer.hidden)
}
