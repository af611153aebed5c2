//! `moe_combine` and `moe_bias`: what is done to the rows of a token's experts.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::pointwise;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct MoeCombineParams {
        step: Ptr<StepTable>,
        x: View,
        weights: View,
        residual: View,
        out: View,
        top_k: u32,
        unused: u32,
    }

    struct MoeBiasParams {
        step: Ptr<StepTable>,
        x: View,
        ids: View,
        out: View,
        bias: Ptr<f32>,
        top_k: u32,
        unused: u32,
    }
}

static COMBINE: Source = Source {
    stem: "moe_combine",
    text: include_str!("../../kernels/moe_combine.cu"),
    structs: &[MoeCombineParams::c_text],
};
static BIAS: Source = Source {
    stem: "moe_bias",
    text: include_str!("../../kernels/moe_bias.cu"),
    structs: &[MoeBiasParams::c_text],
};

fn combine_kernel() -> Specialisation {
    Specialisation::new(&COMBINE, "moe_combine")
}

fn bias_kernel() -> Specialisation {
    Specialisation::new(&BIAS, "moe_bias")
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    vec![
        Declaration::new(OpKind::MoeCombine, "f32", vec![combine_kernel()], bind_combine),
        Declaration::new(OpKind::MoeBias, "f32", vec![bias_kernel()], bind_bias),
    ]
}

fn bind_combine(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeCombine { top_k, .. } = binding.call.op else { binding.wrong_op() };
    let params = MoeCombineParams {
        step: binding.step,
        x: binding.input(0),
        weights: binding.input(1),
        residual: binding.optional_input(2),
        out: binding.output(0),
        top_k: top_k as u32,
        unused: 0,
    };
    let grid = pointwise::grid(binding.rows(), params.out.cols);
    Ok(vec![Launch::new(combine_kernel(), &params).grid(grid).block(256)])
}

fn bind_bias(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeBias { experts, top_k } = binding.call.op else { binding.wrong_op() };
    let out = binding.output(0);
    let params = MoeBiasParams {
        step: binding.step,
        x: binding.input(0),
        ids: binding.input(1),
        out,
        bias: binding.vector(0, experts * out.cols as usize)?,
        top_k: top_k as u32,
        unused: 0,
    };
    let grid = pointwise::grid(binding.rows(), out.cols);
    Ok(vec![Launch::new(bias_kernel(), &params).grid(grid).block(256)])
}
