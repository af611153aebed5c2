//! `ssm_conv`, and what it shares with `short_conv`: the same launches over other kernels.

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
    /// What both convolutions read.
    pub(super) struct ConvParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        weight: Ptr<f32>,
        bias: Ptr<f32>,
        slots: SlotView,
    }
}

static SOURCE: Source = Source {
    stem: "ssm_conv",
    text: include_str!("../../kernels/ssm_conv.cu"),
    structs: &[SlotView::c_text, ConvParams::c_text],
};

static KERNELS: Convolution = Convolution { source: &SOURCE, entries: ["ssm_conv", "ssm_conv_store"] };

/// Threads of a block, a channel each.
const THREADS: u32 = 128;
/// Taps whose columns a thread keeps in registers.
const MOST_TAPS: usize = 8;

/// Rows that a thread walks in a step of so many: few where there are few, to have enough threads.
fn rows_per_thread(tokens: usize) -> usize {
    if tokens <= 64 { 1 } else { 16 }
}

/// Whether a thread can keep the columns of such a convolution.
pub(super) fn is_narrow(dims: &SsmDims) -> bool {
    (2..=MOST_TAPS).contains(&dims.taps)
}

/// A causal convolution: the kernel that computes it, and the one that keeps its last columns afterwards.
pub(super) struct Convolution {
    pub source: &'static Source,
    pub entries: [&'static str; 2],
}

impl Convolution {
    fn kernel(&self, entry: &'static str, dims: &SsmDims, rows: usize) -> Specialisation {
        Specialisation::new(self.source, entry).define("TAPS", dims.taps).define("ROWS", rows)
    }

    /// The kernels at the sizes that are met most.
    pub fn kernels(&self) -> Vec<Specialisation> {
        let both = |rows| self.entries.map(|entry| self.kernel(entry, &RELEASED, rows));
        [both(1), both(16)].concat()
    }

    /// The launches of a call.
    pub fn bind(&self, binding: &Binding, dims: &SsmDims) -> Result<Vec<Launch>, BackendError> {
        let out = binding.output(0);
        let params = ConvParams {
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
            Launch::new(self.kernel(entry, dims, rows), &params).grid([channels, blocks, 1]).block(THREADS)
        };
        let [compute, store] = self.entries;
        Ok(vec![launch(compute, tokens.div_ceil(rows) as u32), launch(store, segment_blocks(tokens))])
    }
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let accepts = |site: &Site| matches!(site.op, Op::SsmConv(dims) if is_narrow(dims));
    let declaration = Declaration::new(OpKind::SsmConv, "f32", KERNELS.kernels(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmConv(dims) = binding.call.op else { binding.wrong_op() };
    KERNELS.bind(binding, &dims)
}
