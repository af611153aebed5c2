//! `ssm_scan`.

use mambo_kernel::{BackendError, Op, OpKind, Site, SsmDims, StateElem};

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::Declaration;
use super::pointwise::VALUES;
use super::slot::{ODD, RELEASED, SlotView, flatten, head_parts, is_scannable, sized};
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

params! {
    struct ScanParams { xbc: View, dt: View, out: View, a: u32, d: u32, slots: SlotView }
}

fn params_text() -> String {
    flatten(&ScanParams::wgsl())
}

static SOURCE: Source =
    Source { stem: "ssm_scan", text: include_str!("../../kernels/ssm_scan.wgsl"), params: params_text };
static STORE: Source = Source {
    stem: "ssm_scan_store",
    text: include_str!("../../kernels/ssm_scan_store.wgsl"),
    params: params_text,
};

fn kernels(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    [&SOURCE, &STORE].map(|source| sized(Specialisation::new(source), dims, elem))
}

pub(crate) fn declare() -> Vec<Declaration> {
    let all = StateElem::ALL.into_iter().flat_map(|elem| [kernels(&RELEASED, elem), kernels(&ODD, elem)]);
    let accepts = |site: &Site| matches!(site.op, Op::SsmScan(dims) if is_scannable(dims, site.caches.state));
    let declaration = Declaration::new(OpKind::SsmScan, "f32", all.flatten().collect(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmScan(dims) = binding.call.op else { binding.wrong_op() };
    let [a, d] = [binding.vector(0, dims.heads)?, binding.vector(1, dims.heads)?];
    Ok(scan(binding, &dims, [binding.input(0), binding.input(1), binding.output(0)], [a, d]))
}

/// The scan of xBC and dt into out, with a and d among the vectors.
pub(super) fn scan(
    binding: &Binding,
    dims: &SsmDims,
    [xbc, dt, out]: [View; 3],
    [a, d]: [u32; 2],
) -> Vec<Launch> {
    let pool = binding.slots();
    let params = ScanParams { xbc, dt, out, a, d, slots: SlotView::of(&pool.layout) };
    let [scan, store] = kernels(dims, pool.layout.elem);
    let parts = narrow(head_parts(dims));
    let columns = narrow((dims.inner() + dims.group_state() + dims.heads).div_ceil(VALUES));
    vec![
        Launch::new(scan, &params, move |facts| rows_grid(parts, facts.segments)).caching(&pool.buffer),
        Launch::new(store, &params, move |facts| rows_grid(columns, facts.segments)).caching(&pool.buffer),
    ]
}
