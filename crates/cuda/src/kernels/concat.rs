//! `concat`.

use mambo_kernel::{BackendError, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::pointwise;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct ConcatParams { step: Ptr<StepTable>, a: View, b: View, out: View }
}

static SOURCE: Source = Source {
    stem: "concat",
    text: include_str!("../../kernels/concat.cu"),
    structs: &[ConcatParams::c_text],
};

fn kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "concat")
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    vec![Declaration::new(OpKind::Concat, "f32", vec![kernel()], bind)]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let (step, a, b) = (binding.step, binding.input(0), binding.input(1));
    let params = ConcatParams { step, a, b, out: binding.output(0) };
    let grid = pointwise::grid(binding.rows(), params.out.cols);
    Ok(vec![Launch::new(kernel(), &params).grid(grid).block(256)])
}
