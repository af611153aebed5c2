//! `glu`.

use mambo_kernel::{Activation, BackendError, Op, OpKind};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::pointwise::{VALUES, source};
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct GluParams { gate: View, x: View, out: View, alpha: f32, limit: f32 }
}

source!(SOURCE, "glu", GluParams);

/// The number by which the kernel knows an activation.
fn number(activation: Activation) -> usize {
    match activation {
        Activation::Silu => 0,
        Activation::Sigmoid => 1,
        Activation::GeluTanh => 2,
        Activation::Gelu => 3,
        Activation::ClampedSilu { .. } => 4,
    }
}

fn kernel(activation: usize) -> Specialisation {
    Specialisation::new(&SOURCE).define("ACTIVATION", activation)
}

pub(crate) fn declare() -> Vec<Declaration> {
    vec![Declaration::new(OpKind::Glu, "f32", (0..5).map(kernel).collect(), bind)]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Glu(activation) = binding.call.op else { binding.wrong_op() };
    let (alpha, limit) = match activation {
        Activation::ClampedSilu { alpha, limit } => (alpha, limit),
        _ => (0.0, 0.0),
    };
    let out = binding.output(0);
    let params = GluParams { gate: binding.input(0), x: binding.input(1), out, alpha, limit };
    let workgroups = (out.cols as usize).div_ceil(VALUES);
    Ok(vec![Launch::by_row(kernel(number(activation)), &params, workgroups, binding.rows())])
}
