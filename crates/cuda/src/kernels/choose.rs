//! `choose`.

use mambo_kernel::{BackendError, OpKind};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct ChooseParams { step: Ptr<StepTable>, logits: View, out: View, slices: Ptr<u64> }
}

static SOURCE: Source = Source {
    stem: "choose",
    text: include_str!("../../kernels/choose.cu"),
    structs: &[ChooseParams::c_text],
};

/// Slices of a row that are searched side by side (`SLICES` in choose.cu).
const SLICES: u32 = 32;

fn kernel(entry: &'static str) -> Specialisation {
    Specialisation::new(&SOURCE, entry)
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    vec![Declaration::new(OpKind::Choose, "f32", vec![kernel("choose_best"), kernel("choose")], bind)]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let rows = binding.rows();
    let slices = binding.scratch((rows * SLICES) as usize * size_of::<u64>()).cast();
    let params =
        ChooseParams { step: binding.step, logits: binding.input(0), out: binding.output(0), slices };
    Ok(vec![
        Launch::new(kernel("choose_best"), &params).grid([SLICES, rows, 1]).block(256),
        Launch::new(kernel("choose"), &params).grid([rows, 1, 1]).block(1024),
    ])
}
