//! The ops that compute every value by itself: `add`, `bias`, `concat`, `gather_rows`, `moe_bias`, `moe_combine`, `relu2`,
//! `soft_cap` and `ssm_dt`.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct AddParams { a: View, b: View, out: View }
    struct Relu2Params { x: View, out: View }
    struct BiasParams { x: View, out: View, bias: u32 }
    struct SoftCapParams { x: View, out: View, cap: f32 }
    struct MoeBiasParams { x: View, ids: View, out: View, bias: u32, top_k: u32, experts: u32 }
    struct MoeCombineParams { x: View, weights: View, residual: View, out: View, top_k: u32 }
}

macro_rules! source {
    ($name:ident, $stem:literal, $params:ty) => {
        static $name: Source = Source {
            stem: $stem,
            text: include_str!(concat!("../../kernels/", $stem, ".wgsl")),
            params: <$params>::wgsl,
        };
    };
}
pub(super) use source;

source!(ADD, "add", AddParams);
source!(CONCAT, "concat", AddParams);
source!(RELU2, "relu2", Relu2Params);
source!(GATHER_ROWS, "gather_rows", Relu2Params);
source!(BIAS, "bias", BiasParams);
source!(SSM_DT, "ssm_dt", BiasParams);
source!(SOFT_CAP, "soft_cap", SoftCapParams);
source!(MOE_BIAS, "moe_bias", MoeBiasParams);
source!(MOE_COMBINE, "moe_combine", MoeCombineParams);

/// Values of a workgroup.
pub(super) const VALUES: usize = 64;

/// A launch with a thread for every value of the first output.
pub(super) fn launch(binding: &Binding, source: &'static Source, params: &impl Params) -> Vec<Launch> {
    let workgroups = binding.call.outputs[0].cols.div_ceil(VALUES);
    vec![Launch::by_row(Specialisation::new(source), params, workgroups, binding.rows())]
}

pub(crate) fn declare() -> Vec<Declaration> {
    let own = |op, source, bind| Declaration::new(op, "f32", vec![Specialisation::new(source)], bind);
    vec![
        own(OpKind::Add, &ADD, |binding| Ok(launch(binding, &ADD, &two_inputs(binding)))),
        own(OpKind::Concat, &CONCAT, |binding| Ok(launch(binding, &CONCAT, &two_inputs(binding)))),
        own(OpKind::Relu2, &RELU2, |binding| Ok(launch(binding, &RELU2, &one_input(binding)))),
        own(OpKind::GatherRows, &GATHER_ROWS, |binding| {
            Ok(launch(binding, &GATHER_ROWS, &one_input(binding)))
        }),
        own(OpKind::Bias, &BIAS, |binding| Ok(launch(binding, &BIAS, &biased(binding)?))),
        own(OpKind::SsmDt, &SSM_DT, |binding| Ok(launch(binding, &SSM_DT, &biased(binding)?))),
        own(OpKind::SoftCap, &SOFT_CAP, bind_soft_cap),
        own(OpKind::MoeBias, &MOE_BIAS, bind_moe_bias),
        own(OpKind::MoeCombine, &MOE_COMBINE, bind_moe_combine),
    ]
}

fn two_inputs(binding: &Binding) -> AddParams {
    AddParams { a: binding.input(0), b: binding.input(1), out: binding.output(0) }
}

fn one_input(binding: &Binding) -> Relu2Params {
    Relu2Params { x: binding.input(0), out: binding.output(0) }
}

fn biased(binding: &Binding) -> Result<BiasParams, BackendError> {
    let out = binding.output(0);
    Ok(BiasParams { x: binding.input(0), out, bias: binding.vector(0, out.cols as usize)? })
}

/// `ssm_dt` of another op's rows.
pub(super) fn ssm_dt(x: View, out: View, bias: u32) -> (Specialisation, impl Params) {
    (Specialisation::new(&SSM_DT), BiasParams { x, out, bias })
}

fn bind_soft_cap(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SoftCap { cap } = binding.call.op else { binding.wrong_op() };
    let params = SoftCapParams { x: binding.input(0), out: binding.output(0), cap };
    Ok(launch(binding, &SOFT_CAP, &params))
}

fn bind_moe_bias(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeBias { experts, top_k } = binding.call.op else { binding.wrong_op() };
    let out = binding.output(0);
    let params = MoeBiasParams {
        x: binding.input(0),
        ids: binding.input(1),
        out,
        bias: binding.vector(0, experts * out.cols as usize)?,
        top_k: top_k as u32,
        experts: experts as u32,
    };
    Ok(launch(binding, &MOE_BIAS, &params))
}

fn bind_moe_combine(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeCombine { top_k, .. } = binding.call.op else { binding.wrong_op() };
    let params = MoeCombineParams {
        x: binding.input(0),
        weights: binding.input(1),
        residual: binding.optional_input(2),
        out: binding.output(0),
        top_k: top_k as u32,
    };
    Ok(launch(binding, &MOE_COMBINE, &params))
}
