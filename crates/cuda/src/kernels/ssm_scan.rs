//! `ssm_scan`.

use mambo_kernel::{BackendError, Op, OpKind, SSM_CHUNK, Site, SsmDims, StateElem};

use super::binding::Binding;
use super::declaration::Declaration;
use super::slot::{
    ODD, PART_CHANNELS, RELEASED, SlotView, chunk_shared_bytes, chunk_threads, is_scannable,
    most_shared_bytes, segment_blocks, sized,
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

/// Bytes of shared memory beside a block's chunks (`ScanShared` in ssm_scan.cu).
const BESIDE_CHUNKS: u32 = 64;

/// Chunks that a block works on at a time: one is prepared beside the one that is computed, where there is room.
fn chunks(dims: &SsmDims, shared_bytes: u32) -> u32 {
    if 2 * chunk_shared_bytes(dims) + BESIDE_CHUNKS <= shared_bytes { 2 } else { 1 }
}

fn kernel(entry: &'static str, dims: &SsmDims, elem: StateElem, chunks: u32) -> Specialisation {
    let kernel = Specialisation::new(&SOURCE, entry).define("CHUNKS", chunks);
    sized(kernel, dims, elem, chunk_shared_bytes(dims))
}

/// The kernels of these sizes, for states of every type.
pub(crate) fn sizes(dims: &SsmDims, arch: Arch) -> Vec<Specialisation> {
    StateElem::ALL.map(|elem| both(dims, elem, arch)).concat()
}

fn both(dims: &SsmDims, elem: StateElem, arch: Arch) -> [Specialisation; 2] {
    let kernel = |entry| kernel(entry, dims, elem, chunks(dims, most_shared_bytes(arch)));
    [kernel("ssm_scan").expecting(Expects::Mma), kernel("ssm_scan_store")]
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let kernels = [sizes(&RELEASED, arch), both(&ODD, StateElem::F16, arch).to_vec()].concat();
    let accepts = move |site: &Site| match site.op {
        Op::SsmScan(dims) => is_scannable(dims, chunk_shared_bytes(dims) + BESIDE_CHUNKS, arch),
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
    let chunks = chunks(&dims, binding.facts.shared_bytes);
    let kernel = |entry| kernel(entry, &dims, elem, chunks);
    let scan = Launch::new(kernel("ssm_scan"), &params)
        .grid([dims.heads as u32, segments, dims.head_dim.div_ceil(PART_CHANNELS) as u32])
        .block(2 * chunk_threads(&dims))
        .shared(chunks * chunk_shared_bytes(&dims) + BESIDE_CHUNKS);
    let rows = tokens.min(SSM_CHUNK) as u32;
    let store = Launch::new(kernel("ssm_scan_store"), &params).grid([rows, segments, 1]).block(256);
    Ok(vec![scan, store])
}
