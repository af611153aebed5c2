//! `delta_scan`.

use mambo_kernel::{BackendError, Op, OpKind, SSM_CHUNK, Site, SsmDims, StateElem};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::{ODD, PART_CHANNELS, SlotView, head_blocks, is_scannable, segment_blocks, sized};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct DeltaScanParams {
        step: Ptr<StepTable>,
        qkv: View,
        strength: View,
        decay: View,
        out: View,
        a: Ptr<f32>,
        dt_bias: Ptr<f32>,
        slots: SlotView,
    }
}

static SOURCE: Source = Source {
    stem: "delta_scan",
    text: include_str!("../../kernels/delta_scan.cu"),
    structs: &[SlotView::c_text, DeltaScanParams::c_text],
};

/// Threads of a block.
const THREADS: u32 = 256;
/// Qwen3-Next's sizes.
const RELEASED: SsmDims = SsmDims { heads: 32, head_dim: 128, state: 128, groups: 16, taps: 4 };

/// `DeltaShared` in delta_scan.cu.
fn shared_bytes(dims: &SsmDims) -> u32 {
    let pitch = PART_CHANNELS + 1;
    let rows = 2 * (dims.state | 1) + 5 * pitch + 4;
    (4 * (SSM_CHUNK * rows + dims.state * pitch)) as u32
}

fn kernel(entry: &'static str, dims: &SsmDims, elem: StateElem) -> Specialisation {
    sized(Specialisation::new(&SOURCE, entry), dims, elem, shared_bytes(dims))
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let both =
        |dims: &SsmDims, elem| ["delta_scan", "delta_scan_store"].map(|entry| kernel(entry, dims, elem));
    let released = StateElem::ALL.map(|elem| both(&RELEASED, elem)).concat();
    let kernels = [released, both(&ODD, StateElem::F16).to_vec()].concat();
    let accepts = move |site: &Site| match site.op {
        Op::DeltaScan(dims) => is_scannable(dims, shared_bytes(dims), arch),
        _ => false,
    };
    vec![Declaration::new(OpKind::DeltaScan, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::DeltaScan(dims) = binding.call.op else { binding.wrong_op() };
    let pool = binding.slots();
    let params = DeltaScanParams {
        step: binding.step,
        qkv: binding.input(0),
        strength: binding.input(1),
        decay: binding.input(2),
        out: binding.output(0),
        a: binding.vector(0, dims.heads)?,
        dt_bias: binding.vector(1, dims.heads)?,
        slots: SlotView::of(&pool),
    };
    let (tokens, elem) = (binding.bucket.tokens, pool.layout.elem);
    let segments = segment_blocks(tokens);
    let scan = Launch::new(kernel("delta_scan", &dims, elem), &params)
        .grid([head_blocks(&dims), segments, 1])
        .block(THREADS)
        .shared(shared_bytes(&dims));
    let rows = tokens.min(SSM_CHUNK) as u32;
    let store = Launch::new(kernel("delta_scan_store", &dims, elem), &params)
        .grid([rows, segments, 1])
        .block(THREADS);
    Ok(vec![scan, store])
}
