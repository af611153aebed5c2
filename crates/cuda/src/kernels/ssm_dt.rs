//! `ssm_dt`.

use mambo_kernel::{BackendError, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::SlotView;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct SsmDtParams { step: Ptr<StepTable>, dt: View, out: View, bias: Ptr<f32> }
}

static SOURCE: Source = Source {
    stem: "ssm_dt",
    text: include_str!("../../kernels/ssm_dt.cu"),
    structs: &[SlotView::c_text, SsmDtParams::c_text],
};

fn kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "ssm_dt")
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    vec![Declaration::new(OpKind::SsmDt, "f32", vec![kernel()], bind)]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let out = binding.output(0);
    let bias = binding.vector(0, out.cols as usize)?;
    let params = SsmDtParams { step: binding.step, dt: binding.input(0), out, bias };
    let blocks = (binding.rows() * out.cols).div_ceil(256);
    Ok(vec![Launch::new(kernel(), &params).grid([blocks, 1, 1]).block(256)])
}
