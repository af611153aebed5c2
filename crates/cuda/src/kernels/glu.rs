//! `glu`.

use mambo_kernel::{Activation, BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::round::{self, rounds};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct GluParams {
        step: Ptr<StepTable>,
        gate: View,
        x: View,
        out: View,
        rounded: View,
        rounded_kind: u32,
        alpha: f32,
        limit: f32,
        unused: u32,
    }
}

static SOURCE: Source =
    Source { stem: "glu", text: include_str!("../../kernels/glu.cu"), structs: &[GluParams::c_text] };

/// The number by which the kernel knows an activation.
fn number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::Sigmoid => 1,
        Activation::GeluTanh => 2,
        Activation::Gelu => 3,
        Activation::ClampedSilu { .. } => 4,
    }
}

fn kernel(activation: u32, threads: u32) -> Specialisation {
    Specialisation::new(&SOURCE, "glu").define("ACTIVATION", activation).define("THREADS", threads)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let kernels = (0..5).map(|activation| kernel(activation, 512)).chain([kernel(0, 64), kernel(0, 256)]);
    vec![Declaration::new(OpKind::Glu, "f32", kernels.collect(), bind).offering(|row| row.rounding(rounds))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Glu(activation) = binding.call.op else { binding.wrong_op() };
    let (alpha, limit) = match activation {
        Activation::ClampedSilu { alpha, limit } => (alpha, limit),
        _ => (0.0, 0.0),
    };
    let (rounded, rounded_kind) = round::rounded(binding);
    let params = GluParams {
        step: binding.step,
        gate: binding.input(0),
        x: binding.input(1),
        out: binding.output(0),
        rounded,
        rounded_kind,
        alpha,
        limit,
        unused: 0,
    };
    let threads = round::row_threads(params.out.cols);
    let kernel = kernel(number(activation), threads);
    Ok(vec![Launch::new(kernel, &params).grid([binding.rows(), 1, 1]).block(threads)])
}
