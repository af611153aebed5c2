//! `add`.

use mambo_kernel::{BackendError, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct AddParams { step: Ptr<StepTable>, a: View, b: View, out: View }
}

static SOURCE: Source =
    Source { stem: "add", text: include_str!("../../kernels/add.cu"), structs: &[AddParams::c_text] };

fn kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "add")
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    vec![Declaration::new(OpKind::Add, "f32", vec![kernel()], bind)]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let params =
        AddParams { step: binding.step, a: binding.input(0), b: binding.input(1), out: binding.output(0) };
    Ok(vec![
        Launch::new(kernel(), &params).grid([binding.rows(), params.out.cols.div_ceil(1024), 1]).block(256),
    ])
}
