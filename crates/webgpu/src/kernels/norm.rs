//! `rms_norm`, `head_norm`, `layer_norm` and `gated_group_norm`.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::pointwise::source;
use super::quantize::rounds;
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct RmsNormParams { x: View, out: View, weight: u32, size: u32, eps: f32 }
    struct LayerNormParams { x: View, out: View, weight: u32, bias: u32, eps: f32 }
    struct GatedGroupNormParams { y: View, z: View, out: View, weight: u32, size: u32, eps: f32 }
}

source!(RMS_NORM, "rms_norm", RmsNormParams);
source!(LAYER_NORM, "layer_norm", LayerNormParams);
source!(GATED_GROUP_NORM, "gated_group_norm", GatedGroupNormParams);

pub(crate) fn declare() -> Vec<Declaration> {
    let own = |op, source, bind| Declaration::new(op, "f32", vec![Specialisation::new(source)], bind);
    vec![
        own(OpKind::RmsNorm, &RMS_NORM, bind_rms_norm).offering(|row| row.rounding(rounds)),
        own(OpKind::HeadNorm, &RMS_NORM, bind_rms_norm),
        own(OpKind::LayerNorm, &LAYER_NORM, bind_layer_norm),
        own(OpKind::GatedGroupNorm, &GATED_GROUP_NORM, bind_gated_group_norm),
    ]
}

fn bind_rms_norm(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let cols = binding.call.outputs[0].cols;
    let (size, eps) = match binding.call.op {
        Op::RmsNorm { eps } => (cols, eps),
        Op::HeadNorm { head_dim, eps } => (head_dim, eps),
        _ => binding.wrong_op(),
    };
    let weight = binding.vector(0, size)?;
    let params =
        RmsNormParams { x: binding.input(0), out: binding.output(0), weight, size: size as u32, eps };
    let launch = Launch::by_row(Specialisation::new(&RMS_NORM), &params, cols / size, binding.rows());
    let (rows, is_absorbed) = (binding.rows(), binding.is_absorbed);
    Ok(vec![launch.unless(move |facts| is_absorbed && facts.rows(rows) == 1)])
}

fn bind_layer_norm(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::LayerNorm { eps } = binding.call.op else { binding.wrong_op() };
    let cols = binding.call.outputs[0].cols;
    let (weight, bias) = (binding.vector(0, cols)?, binding.vector(1, cols)?);
    let params = LayerNormParams { x: binding.input(0), out: binding.output(0), weight, bias, eps };
    Ok(vec![Launch::by_row(Specialisation::new(&LAYER_NORM), &params, 1, binding.rows())])
}

fn bind_gated_group_norm(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::GatedGroupNorm { groups, eps } = binding.call.op else { binding.wrong_op() };
    let cols = binding.call.outputs[0].cols;
    let weight = binding.vector(0, cols)?;
    let (y, z) = (binding.input(0), binding.input(1));
    Ok(vec![gated_group_norm(binding, [y, z], weight, cols / groups, eps)])
}

/// The gated norm of rows y by z into the call's first output, in groups of so many columns.
pub(super) fn gated_group_norm(
    binding: &Binding,
    [y, z]: [View; 2],
    weight: u32,
    size: usize,
    eps: f32,
) -> Launch {
    let out = binding.output(0);
    let params = GatedGroupNormParams { y, z, out, weight, size: size as u32, eps };
    let groups = out.cols as usize / size;
    Launch::by_row(Specialisation::new(&GATED_GROUP_NORM), &params, groups, binding.rows())
}
