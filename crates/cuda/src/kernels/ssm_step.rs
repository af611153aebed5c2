//! `ssm_step`.

use mambo_kernel::{BackendError, Op, OpKind, Phase, Site, SsmDims, StateElem};

use super::binding::Binding;
use super::declaration::Declaration;
use super::gated_group_norm::{MOST_CHANNELS, NORM_BLOCK};
use super::round::{rounded, rounds};
use super::slot::{
    ODD, RELEASED, SlotView, chunk_shared_bytes, chunk_threads, head_blocks, is_scannable, segment_blocks,
    sized,
};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct SsmStepParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        rounded: View,
        conv_weight: Ptr<f32>,
        conv_bias: Ptr<f32>,
        dt_bias: Ptr<f32>,
        a: Ptr<f32>,
        d: Ptr<f32>,
        norm: Ptr<f32>,
        slots: SlotView,
        rounded_kind: u32,
        eps: f32,
    }
}

static SOURCE: Source = Source {
    stem: "ssm_step",
    text: include_str!("../../kernels/ssm_step.cu"),
    structs: &[SlotView::c_text, SsmStepParams::c_text],
};

/// Taps that a thread reads at once.
const MOST_TAPS: usize = 8;

fn kernel(entry: &'static str, dims: &SsmDims, elem: StateElem) -> Specialisation {
    let kernel = sized(Specialisation::new(&SOURCE, entry), dims, elem, chunk_shared_bytes(dims));
    kernel.define("TAPS", dims.taps)
}

/// The kernels of these sizes, for states of every type.
pub(crate) fn sizes(dims: &SsmDims) -> Vec<Specialisation> {
    StateElem::ALL.map(|elem| both(dims, elem)).concat()
}

fn both(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    [kernel("ssm_step", dims, elem).expecting(Expects::Mma), kernel("ssm_step_finish", dims, elem)]
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let kernels = [sizes(&RELEASED), both(&ODD, StateElem::F16).to_vec()].concat();
    let accepts = move |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => {
            site.phase != Phase::Prefill
                && is_scannable(dims, chunk_shared_bytes(dims), arch)
                && (2..=MOST_TAPS).contains(&dims.taps)
                && dims.inner() <= MOST_CHANNELS
        }
        _ => false,
    };
    let declaration = Declaration::new(OpKind::SsmStep, "f32", kernels, bind);
    vec![declaration.offering(|row| row.accepting(accepts).rounding(rounds))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmStep { dims, eps } = binding.call.op else { binding.wrong_op() };
    let pool = binding.slots();
    let (rounded, rounded_kind) = rounded(binding);
    let params = SsmStepParams {
        step: binding.step,
        x: binding.input(0),
        out: binding.output(0),
        rounded,
        conv_weight: binding.vector(0, dims.conv_dim() * dims.taps)?,
        conv_bias: binding.vector(1, dims.conv_dim())?,
        dt_bias: binding.vector(2, dims.heads)?,
        a: binding.vector(3, dims.heads)?,
        d: binding.vector(4, dims.heads)?,
        norm: binding.vector(5, dims.inner())?,
        slots: SlotView::of(&pool),
        rounded_kind,
        eps,
    };
    let (tokens, elem) = (binding.bucket.tokens, pool.layout.elem);
    let step = Launch::new(kernel("ssm_step", &dims, elem), &params)
        .grid([head_blocks(&dims), segment_blocks(tokens), 1])
        .block(chunk_threads(&dims))
        .shared(chunk_shared_bytes(&dims));
    // What several blocks have read: columns of B and C, and step sizes.
    let columns = (2 * dims.group_state() + dims.heads) as u32;
    let finish = Launch::new(kernel("ssm_step_finish", &dims, elem), &params)
        .grid([tokens as u32, 1 + columns.div_ceil(NORM_BLOCK), 1])
        .block(NORM_BLOCK)
        .shared(4 * dims.inner() as u32);
    Ok(vec![step, finish])
}
