//! `delta_scan`.

use mambo_kernel::{BackendError, Op, OpKind, Site, SsmDims, StateElem};

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::Declaration;
use super::pointwise::VALUES;
use super::slot::{ODD, SlotView, flatten, head_parts, is_scannable, sized};
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

params! {
    struct DeltaParams {
        qkv: View,
        strength: View,
        decay: View,
        out: View,
        a: u32,
        dt_bias: u32,
        slots: SlotView,
    }
}

fn params_text() -> String {
    flatten(&DeltaParams::wgsl())
}

static SOURCE: Source =
    Source { stem: "delta_scan", text: include_str!("../../kernels/delta_scan.wgsl"), params: params_text };
static STORE: Source = Source {
    stem: "delta_scan_store",
    text: include_str!("../../kernels/delta_scan_store.wgsl"),
    params: params_text,
};

/// The largest state that a workgroup's memory has columns of.
const MOST_STATE: usize = 128;
/// The mixer of Qwen3-Next.
const RELEASED: SsmDims = SsmDims { heads: 32, head_dim: 128, state: 128, groups: 16, taps: 4 };

fn kernels(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    [&SOURCE, &STORE].map(|source| sized(Specialisation::new(source), dims, elem))
}

pub(crate) fn declare() -> Vec<Declaration> {
    let all = StateElem::ALL.into_iter().flat_map(|elem| [kernels(&RELEASED, elem), kernels(&ODD, elem)]);
    let accepts = |site: &Site| match site.op {
        Op::DeltaScan(dims) => is_scannable(dims, site.caches.state) && dims.state <= MOST_STATE,
        _ => false,
    };
    let declaration = Declaration::new(OpKind::DeltaScan, "f32", all.flatten().collect(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::DeltaScan(dims) = binding.call.op else { binding.wrong_op() };
    let pool = binding.slots();
    let params = DeltaParams {
        qkv: binding.input(0),
        strength: binding.input(1),
        decay: binding.input(2),
        out: binding.output(0),
        a: binding.vector(0, dims.heads)?,
        dt_bias: binding.vector(1, dims.heads)?,
        slots: SlotView::of(&pool.layout),
    };
    let [scan, store] = kernels(&dims, pool.layout.elem);
    let parts = narrow(head_parts(&dims));
    let items = narrow((dims.groups + dims.heads).div_ceil(VALUES));
    Ok(vec![
        Launch::new(scan, &params, move |facts| rows_grid(parts, facts.segments)).caching(&pool.buffer),
        Launch::new(store, &params, move |facts| rows_grid(items, facts.segments)).caching(&pool.buffer),
    ])
}
