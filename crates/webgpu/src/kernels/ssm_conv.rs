//! `ssm_conv` and `short_conv`: the same kernels, plain and gated.

use mambo_kernel::{BackendError, Op, OpKind, SsmDims, StateElem};

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::Declaration;
use super::pointwise::VALUES;
use super::slot::{ODD, RELEASED, SlotView, elem_number, flatten};
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

params! {
    struct ConvParams { x: View, out: View, weight: u32, bias: u32, channels: u32, slots: SlotView }
}

fn params_text() -> String {
    flatten(&ConvParams::wgsl())
}

static SOURCE: Source =
    Source { stem: "ssm_conv", text: include_str!("../../kernels/ssm_conv.wgsl"), params: params_text };
static STORE: Source = Source {
    stem: "ssm_conv_store",
    text: include_str!("../../kernels/ssm_conv_store.wgsl"),
    params: params_text,
};

fn kernels(dims: &SsmDims, gated: bool) -> [Specialisation; 2] {
    let gated = |kernel: Specialisation| {
        kernel.define("GATED", usize::from(gated)).define("STATE_ELEM", elem_number(StateElem::F32))
    };
    [gated(Specialisation::new(&SOURCE)).define("TAPS", dims.taps), gated(Specialisation::new(&STORE))]
}

pub(crate) fn declare() -> Vec<Declaration> {
    let all = |gated| [kernels(&RELEASED, gated), kernels(&ODD, gated)].concat();
    vec![
        Declaration::new(OpKind::SsmConv, "f32", all(false), bind),
        Declaration::new(OpKind::ShortConv, "f32", all(true), bind),
    ]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let (dims, gated) = match binding.call.op {
        Op::SsmConv(dims) => (dims, false),
        Op::ShortConv(dims) => (dims, true),
        _ => binding.wrong_op(),
    };
    let [weight, bias] =
        [binding.vector(0, dims.conv_dim() * dims.taps)?, binding.vector(1, dims.conv_dim())?];
    Ok(convolution(binding, &dims, gated, [binding.input(0), binding.output(0)], [weight, bias]))
}

/// The convolution of x into out, with its weight and bias among the vectors.
pub(super) fn convolution(
    binding: &Binding,
    dims: &SsmDims,
    gated: bool,
    [x, out]: [View; 2],
    [weight, bias]: [u32; 2],
) -> Vec<Launch> {
    let pool = binding.slots();
    let slots = SlotView::of(&pool.layout);
    let params = ConvParams { x, out, weight, bias, channels: narrow(dims.conv_dim()), slots };
    let [compute, store] = kernels(dims, gated);
    let workgroups = dims.conv_dim().div_ceil(VALUES);
    let segments = narrow(workgroups);
    vec![
        Launch::by_row(compute, &params, workgroups, binding.rows()).caching(&pool.buffer),
        Launch::new(store, &params, move |facts| rows_grid(segments, facts.segments)).caching(&pool.buffer),
    ]
}
