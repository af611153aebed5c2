//! `short_conv`.

use mambo_kernel::{BackendError, Op, OpKind, Site, SsmDims};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::{RELEASED, SlotView, segment_blocks};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct ShortConvParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        weight: Ptr<f32>,
        bias: Ptr<f32>,
        slots: SlotView,
    }
}

static SOURCE: Source = Source {
    stem: "short_conv",
    text: include_str!("../../kernels/short_conv.cu"),
    structs: &[SlotView::c_text, ShortConvParams::c_text],
};

/// Threads of a block, a channel each.
const THREADS: u32 = 128;
/// Taps whose columns a thread keeps in registers.
const MOST_TAPS: usize = 8;

/// Rows that a thread walks in a step of so many: few where there are few, to have enough threads.
fn rows_per_thread(tokens: usize) -> usize {
    if tokens <= 64 { 1 } else { 16 }
}

fn kernel(entry: &'static str, dims: &SsmDims, rows: usize) -> Specialisation {
    Specialisation::new(&SOURCE, entry).define("TAPS", dims.taps).define("ROWS", rows)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let both = |rows| ["short_conv", "short_conv_store"].map(|entry| kernel(entry, &RELEASED, rows));
    let kernels = [both(1), both(16)].concat();
    let accepts = |site: &Site| match site.op {
        Op::ShortConv(dims) => (2..=MOST_TAPS).contains(&dims.taps),
        _ => false,
    };
    vec![Declaration::new(OpKind::ShortConv, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::ShortConv(dims) = binding.call.op else { binding.wrong_op() };
    let out = binding.output(0);
    let params = ShortConvParams {
        step: binding.step,
        x: binding.input(0),
        out,
        weight: binding.vector(0, dims.conv_dim() * dims.taps)?,
        bias: binding.vector(1, dims.conv_dim())?,
        slots: SlotView::of(&binding.slots()),
    };
    let (tokens, channels) = (binding.bucket.tokens, out.cols.div_ceil(THREADS));
    let rows = rows_per_thread(tokens);
    let launch = |entry, blocks| {
        Launch::new(kernel(entry, &dims, rows), &params).grid([channels, blocks, 1]).block(THREADS)
    };
    Ok(vec![
        launch("short_conv", tokens.div_ceil(rows) as u32),
        launch("short_conv_store", segment_blocks(tokens)),
    ])
}
