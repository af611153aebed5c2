//! Ops that compute each value of a row from the values in the same place: `relu2`, `soft_cap`, `bias`; and
//! `gather_rows`, which copies them.

use mambo_kernel::{BackendError, Op, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct PointwiseParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        weight: Ptr<f32>,
        /// The op's number, if it has one.
        number: f32,
        unused: u32,
    }
}

macro_rules! sources {
    ($($name:ident = $stem:literal;)*) => {
        $(static $name: Source = Source {
            stem: $stem,
            text: include_str!(concat!("../../kernels/", $stem, ".cu")),
            structs: &[PointwiseParams::c_text],
        };)*
    };
}

sources! {
    RELU2 = "relu2";
    SOFT_CAP = "soft_cap";
    BIAS = "bias";
    GATHER_ROWS = "gather_rows";
}

/// Threads of a block.
const THREADS: u32 = 256;

/// Blocks for rows of so many columns, four to a thread.
pub(crate) fn grid(rows: u32, cols: u32) -> [u32; 3] {
    [rows, cols.div_ceil(4 * THREADS), 1]
}

fn kernel(op: OpKind) -> Specialisation {
    match op {
        OpKind::Relu2 => Specialisation::new(&RELU2, "relu2"),
        OpKind::SoftCap => Specialisation::new(&SOFT_CAP, "soft_cap"),
        OpKind::Bias => Specialisation::new(&BIAS, "bias"),
        OpKind::GatherRows => Specialisation::new(&GATHER_ROWS, "gather_rows"),
        _ => unreachable!("{} is no op of this file", op.name()),
    }
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let ops = [OpKind::Relu2, OpKind::SoftCap, OpKind::Bias, OpKind::GatherRows];
    ops.map(|op| Declaration::new(op, "f32", vec![kernel(op)], bind)).into()
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let op = binding.call.op;
    let (x, out) = (binding.input(0), binding.output(0));
    let params = PointwiseParams {
        step: binding.step,
        x,
        out,
        weight: if op == Op::Bias { binding.vector(0, out.cols as usize)? } else { Ptr::NULL },
        number: if let Op::SoftCap { cap } = op { cap } else { 0.0 },
        unused: 0,
    };
    let launch = Launch::new(kernel(op.kind()), &params);
    Ok(vec![launch.grid(grid(binding.rows(), out.cols)).block(THREADS)])
}
