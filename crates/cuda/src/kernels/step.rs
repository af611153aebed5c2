//! The kernels at both ends of a step, which belong to no op.

use mambo_kernel::Call;

use super::binding::Bucket;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct StepBeginParams { step: Ptr<StepTable> }
    struct StepEndParams { step: Ptr<StepTable>, choices: View }
}

static SOURCE: Source = Source {
    stem: "step",
    text: include_str!("../../kernels/step.cu"),
    structs: &[StepBeginParams::c_text, StepEndParams::c_text],
};

/// Threads of a block that gathers choices.
const END_THREADS: usize = 128;

/// Everything here.
pub(crate) fn specialisations() -> Vec<Specialisation> {
    ["step_begin", "step_end"].map(|entry| Specialisation::new(&SOURCE, entry)).to_vec()
}

/// The launch before a step's calls.
pub(crate) fn begin(step: Ptr<StepTable>, bucket: Bucket) -> Launch {
    let kernel = Specialisation::new(&SOURCE, "step_begin");
    Launch::new(kernel, &StepBeginParams { step }).grid([bucket.tokens as u32, 1, 1]).block(128)
}

/// The launch after the calls of a step that chooses.
pub(crate) fn end(step: Ptr<StepTable>, arena: Ptr<u8>, chooser: &Call, bucket: Bucket) -> Launch {
    let kernel = Specialisation::new(&SOURCE, "step_end");
    let choices = View::of(&chooser.outputs[0], arena, Ptr::NULL);
    let blocks = bucket.wanted.div_ceil(END_THREADS) as u32;
    Launch::new(kernel, &StepEndParams { step, choices }).grid([blocks, 1, 1]).block(END_THREADS as u32)
}
