//! `ssm_scan`.

use mambo_kernel::{BackendError, Op, OpKind, SSM_CHUNK, Site, SsmDims, StateElem};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::{
    ODD, RELEASED, SlotView, chunk_shared_bytes, chunk_threads, head_blocks, is_scannable, segment_blocks,
    sized,
};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct SsmScanParams {
        step: Ptr<StepTable>,
        xbc: View,
        dt: View,
        out: View,
        a: Ptr<f32>,
        d: Ptr<f32>,
        slots: SlotView,
    }
}

static SOURCE: Source = Source {
    stem: "ssm_scan",
    text: include_str!("../../kernels/ssm_scan.cu"),
    structs: &[SlotView::c_text, SsmScanParams::c_text],
};

fn kernel(entry: &'static str, dims: &SsmDims, elem: StateElem) -> Specialisation {
    sized(Specialisation::new(&SOURCE, entry), dims, elem, chunk_shared_bytes(dims))
}

/// The kernels of these sizes, for states of every type.
pub(crate) fn sizes(dims: &SsmDims) -> Vec<Specialisation> {
    StateElem::ALL.map(|elem| both(dims, elem)).concat()
}

fn both(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    [kernel("ssm_scan", dims, elem).expecting(Expects::Mma), kernel("ssm_scan_store", dims, elem)]
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let kernels = [sizes(&RELEASED), both(&ODD, StateElem::F16).to_vec()].concat();
    let accepts = move |site: &Site| match site.op {
        Op::SsmScan(dims) => is_scannable(dims, chunk_shared_bytes(dims), arch),
        _ => false,
    };
    vec![Declaration::new(OpKind::SsmScan, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmScan(dims) = binding.call.op else { binding.wrong_op() };
    let pool = binding.slots();
    let params = SsmScanParams {
        step: binding.step,
        xbc: binding.input(0),
        dt: binding.input(1),
        out: binding.output(0),
        a: binding.vector(0, dims.heads)?,
        d: binding.vector(1, dims.heads)?,
        slots: SlotView::of(&pool),
    };
    let (tokens, elem) = (binding.bucket.tokens, pool.layout.elem);
    let segments = segment_blocks(tokens);
    let scan = Launch::new(kernel("ssm_scan", &dims, elem), &params)
        .grid([head_blocks(&dims), segments, 1])
        .block(chunk_threads(&dims))
        .shared(chunk_shared_bytes(&dims));
    let rows = tokens.min(SSM_CHUNK) as u32;
    let store =
        Launch::new(kernel("ssm_scan_store", &dims, elem), &params).grid([rows, segments, 1]).block(256);
    Ok(vec![scan, store])
}
