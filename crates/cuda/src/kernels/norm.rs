//! Norms over a row: `rms_norm` and `layer_norm`; and `head_norm`, over every head of a row.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::round::{self, rounds};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct NormParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        rounded: View,
        weight: Ptr<f32>,
        bias: Ptr<f32>,
        eps: f32,
        rounded_kind: u32,
    }

    struct HeadNormParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        weight: Ptr<f32>,
        eps: f32,
        head_dim: u32,
    }
}

static RMS_NORM: Source = Source {
    stem: "rms_norm",
    text: include_str!("../../kernels/rms_norm.cu"),
    structs: &[NormParams::c_text],
};
static LAYER_NORM: Source = Source {
    stem: "layer_norm",
    text: include_str!("../../kernels/layer_norm.cu"),
    structs: &[NormParams::c_text],
};
static HEAD_NORM: Source = Source {
    stem: "head_norm",
    text: include_str!("../../kernels/head_norm.cu"),
    structs: &[HeadNormParams::c_text],
};

/// Heads of a row that a block takes, a warp each.
const HEADS_PER_BLOCK: usize = 4;

fn row_kernel(op: OpKind, threads: u32) -> Specialisation {
    let kernel = match op {
        OpKind::RmsNorm => Specialisation::new(&RMS_NORM, "rms_norm"),
        _ => Specialisation::new(&LAYER_NORM, "layer_norm"),
    };
    kernel.define("THREADS", threads)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let row_norm = |op: OpKind| {
        let kernels = round::ROW_THREADS.map(|threads| row_kernel(op, threads)).to_vec();
        Declaration::new(op, "f32", kernels, bind).offering(|row| row.rounding(rounds))
    };
    let head_norm = Declaration::new(
        OpKind::HeadNorm,
        "f32",
        vec![Specialisation::new(&HEAD_NORM, "head_norm")],
        bind_heads,
    );
    vec![row_norm(OpKind::RmsNorm), row_norm(OpKind::LayerNorm), head_norm]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let (x, out) = (binding.input(0), binding.output(0));
    let cols = out.cols as usize;
    let (eps, bias) = match binding.call.op {
        Op::RmsNorm { eps } => (eps, Ptr::NULL),
        Op::LayerNorm { eps } => (eps, binding.vector(1, cols)?),
        _ => binding.wrong_op(),
    };
    let (rounded, rounded_kind) = round::rounded(binding);
    let weight = binding.vector(0, cols)?;
    let params = NormParams { step: binding.step, x, out, rounded, weight, bias, eps, rounded_kind };
    let threads = round::row_threads(out.cols);
    let kernel = row_kernel(binding.call.op.kind(), threads);
    Ok(vec![Launch::new(kernel, &params).grid([binding.rows(), 1, 1]).block(threads)])
}

fn bind_heads(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::HeadNorm { head_dim, eps } = binding.call.op else { binding.wrong_op() };
    let (x, out) = (binding.input(0), binding.output(0));
    let weight = binding.vector(0, head_dim)?;
    let params = HeadNormParams { step: binding.step, x, out, weight, eps, head_dim: head_dim as u32 };
    let blocks = (out.cols as usize / head_dim).div_ceil(HEADS_PER_BLOCK) as u32;
    let launch = Launch::new(Specialisation::new(&HEAD_NORM, "head_norm"), &params);
    Ok(vec![launch.grid([binding.rows(), blocks, 1]).block(32 * HEADS_PER_BLOCK as u32)])
}
