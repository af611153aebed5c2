//! Rows of private types: the op `quantize`, and what kernels that round their output as they write it share.

use mambo_kernel::{BackendError, Elem, Op, OpKind, Operand, Place, Site};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::activation::{BF16X2, F16};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct QuantizeParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        /// The rows that outputs are made of; null where each is made of its own.
        order: Ptr<u32>,
        kind: u32,
        unused: u32,
    }
}

static SOURCE: Source = Source {
    stem: "quantize",
    text: include_str!("../../kernels/quantize.cu"),
    structs: &[QuantizeParams::c_text],
};

/// Threads of blocks that take a row each.
pub(crate) const ROW_THREADS: [u32; 3] = [64, 256, 512];

/// Threads for a row of so many columns. They decide the order of a row's sums, so nothing else may.
pub(crate) fn row_threads(cols: u32) -> u32 {
    match cols {
        0..=256 => 64,
        257..=1536 => 256,
        _ => 512,
    }
}

/// Values of a row that a thread holds where a kernel does a norm beside its own work (`HELD` in round.cuh).
pub(crate) const HELD: usize = 8;

/// The number by which `round.cuh` knows a private type; 0 is none.
pub(crate) fn kind(elem: Elem) -> u32 {
    match elem {
        elem if elem == F16 => 1,
        elem if elem == BF16X2 => 2,
        elem => unreachable!("{} is no private type of this backend", elem.name()),
    }
}

/// Whether a kernel whose blocks take whole rows can write a private type.
pub(crate) fn rounds(_: &Site, elem: Elem) -> bool {
    elem == F16 || elem == BF16X2
}

/// Whether kernels can read and write an operand's f32 rows in vectors of four.
pub(crate) fn is_in_fours(operand: &Operand) -> bool {
    let start = match operand.place {
        Place::Arena(offset) | Place::Hidden(offset) => offset,
        Place::TokenIds | Place::Wanted => return false,
    };
    start.is_multiple_of(16) && operand.stride_bytes.is_multiple_of(16) && operand.cols.is_multiple_of(4)
}

/// The rounded output of a call and its kind.
pub(crate) fn rounded(binding: &Binding) -> (View, u32) {
    (binding.rounded(), binding.call.rounded.map_or(0, |operand| kind(operand.elem)))
}

fn kernel(threads: u32) -> Specialisation {
    Specialisation::new(&SOURCE, "quantize").define("THREADS", threads)
}

/// Rows from which on a warp takes one, where it can hold it: in fours, so many columns at most.
const MANY_ROWS: u32 = 1024;
const MANY_COLS: u32 = 2048;
const MANY_WARPS: u32 = 8;

fn many_kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "quantize_many").define("THREADS", 32)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let kernels = [ROW_THREADS.map(kernel).to_vec(), vec![many_kernel()]].concat();
    let accepts = |site: &Site| matches!(site.op, Op::Quantize(elem) if rounds(site, *elem));
    vec![Declaration::new(OpKind::Quantize, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn params(binding: &Binding, elem: Elem, order: Ptr<u32>) -> QuantizeParams {
    let (x, out) = (binding.input(0), binding.output(0));
    QuantizeParams { step: binding.step, x, out, order, kind: kind(elem), unused: 0 }
}

/// Whether a warp can take a row of a rounding.
pub(crate) fn fits_warps(binding: &Binding) -> bool {
    let x = binding.input(0);
    x.cols.is_multiple_of(4) && x.stride.is_multiple_of(16) && x.cols <= MANY_COLS
}

/// Rows by a warp each; with an order, output rows are made of those that it names.
pub(crate) fn by_warps(binding: &Binding, order: Ptr<u32>) -> Launch {
    let blocks = binding.rows().div_ceil(MANY_WARPS);
    let launch = Launch::new(many_kernel(), &params(binding, F16, order));
    launch.grid([blocks, 1, 1]).block(32 * MANY_WARPS)
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Quantize(elem) = binding.call.op else { binding.wrong_op() };
    if elem == F16 && binding.rows() >= MANY_ROWS && fits_warps(binding) {
        return Ok(vec![by_warps(binding, Ptr::NULL)]);
    }
    let params = params(binding, elem, Ptr::NULL);
    let threads = row_threads(params.x.cols);
    Ok(vec![Launch::new(kernel(threads), &params).grid([binding.rows(), 1, 1]).block(threads)])
}
