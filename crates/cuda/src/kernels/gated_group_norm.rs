//! `gated_group_norm`.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::round::{is_in_fours, rounded, rounds};
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

/// Threads of a block of `even_group_norm`.
const EVEN_THREADS: u32 = 256;

fn kernel(entry: &'static str, channels: usize) -> Specialisation {
    let vectors = channels.div_ceil(4 * EVEN_THREADS as usize);
    Specialisation::new(&SOURCE, entry).define("HELD_VECTORS", vectors)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    // A small mixer, and those of Nano 30B and 4B.
    let even = [1024, 4096, 7680].map(|channels| kernel("even_group_norm", channels));
    let kernels = [vec![kernel("gated_group_norm", 4096)], even.to_vec()].concat();
    let declaration = Declaration::new(OpKind::GatedGroupNorm, "f32", kernels, bind);
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
    let (channels, grid) = (out.cols as usize, [binding.rows(), 1, 1]);
    let shared = norm_shared_bytes(channels, groups);
    let mut operands = binding.call.inputs.iter().chain(&binding.call.outputs);
    let is_even = channels.is_multiple_of(64)
        && (channels / groups).is_multiple_of(NORM_PIECE)
        && operands.all(is_in_fours);
    // The general form keeps the channels in shared memory, the even one no more than sums and scales.
    let launch = match is_even {
        true => Launch::new(kernel("even_group_norm", channels), &params)
            .block(EVEN_THREADS)
            .shared((4 * (channels / NORM_PIECE + groups)) as u32),
        false => Launch::new(kernel("gated_group_norm", 4096), &params).block(NORM_BLOCK).shared(shared),
    };
    Ok(vec![launch.grid(grid)])
}
