//! `gated_group_norm`.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::round::{rounded, rounds};
use super::slot::SlotView;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct GatedGroupNormParams {
        step: Ptr<StepTable>,
        y: View,
        z: View,
        out: View,
        rounded: View,
        weight: Ptr<f32>,
        rounded_kind: u32,
        groups: u32,
        eps: f32,
        unused: u32,
    }
}

static SOURCE: Source = Source {
    stem: "gated_group_norm",
    text: include_str!("../../kernels/gated_group_norm.cu"),
    structs: &[SlotView::c_text, GatedGroupNormParams::c_text],
};

/// Threads of a block that normalises a row (`NORM_BLOCK` in ssm.cuh).
pub(crate) const NORM_BLOCK: u32 = 1024;
/// Channels whose squares are added up first (`NORM_PIECE` in ssm.cuh).
pub(crate) const NORM_PIECE: usize = 16;
/// Most channels whose values a block keeps in shared memory.
pub(crate) const MOST_CHANNELS: usize = 11 * 1024;

/// Shared memory of a block that normalises a row: its channels, and the sums of their pieces.
pub(crate) fn norm_shared_bytes(channels: usize, groups: usize) -> u32 {
    4 * (channels + groups * (channels / groups).div_ceil(NORM_PIECE)) as u32
}

fn kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "gated_group_norm")
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let declaration = Declaration::new(OpKind::GatedGroupNorm, "f32", vec![kernel()], bind);
    vec![
        declaration.offering(|row| row.accepting(|site| site.input_cols() <= MOST_CHANNELS).rounding(rounds)),
    ]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::GatedGroupNorm { groups, eps } = binding.call.op else { binding.wrong_op() };
    let out = binding.output(0);
    let (rounded, rounded_kind) = rounded(binding);
    let params = GatedGroupNormParams {
        step: binding.step,
        y: binding.input(0),
        z: binding.input(1),
        out,
        rounded,
        rounded_kind,
        weight: binding.vector(0, out.cols as usize)?,
        groups: groups as u32,
        eps,
        unused: 0,
    };
    let launch = Launch::new(kernel(), &params).grid([binding.rows(), 1, 1]).block(NORM_BLOCK);
    Ok(vec![launch.shared(norm_shared_bytes(out.cols as usize, groups))])
}
