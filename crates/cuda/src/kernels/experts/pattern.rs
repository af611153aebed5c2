//! Which calls are a layer of experts that can run as three launches. Must not know weights or launches.

use mambo_kernel::{Call, Epilogue, Op, RowBase};

use crate::activation::F16;

/// The calls, in order.
pub(crate) const CALLS: usize = 10;
pub(super) const NORM: usize = 0;
pub(super) const ROUTER: usize = 1;
pub(super) const ROUTE: usize = 2;
pub(super) const UP: usize = 3;
const UP_ROUNDED: usize = 4;
pub(super) const DOWN: usize = 5;
const COMBINE: usize = 6;
pub(super) const SHARED_UP: usize = 7;
const SHARED_UP_ROUNDED: usize = 8;
pub(super) const SHARED_DOWN: usize = 9;

/// Ids and weights of the chosen experts, as (call, port): some programs show them.
pub(crate) const KEPT: &[(usize, usize)] = &[(ROUTE, 0), (ROUTE, 1)];

/// The sum of a residual, of chosen experts of its norm and of an expert that is always chosen, which all have `relu2`
/// between two products.
pub(crate) fn is_layer(calls: &[Call]) -> bool {
    calls.len() == CALLS && has_ops(calls) && has_flow(calls) && calls.iter().all(counts_tokens)
}

fn counts_tokens(call: &Call) -> bool {
    call.outputs.iter().all(|output| output.rows.base == RowBase::Tokens)
}

fn has_ops(calls: &[Call]) -> bool {
    let ops: Vec<Op> = calls.iter().map(|call| call.op).collect();
    let [norm, router, route, up, up_rounded, down, combine, shared_up, shared_rounded, shared_down] =
        ops[..]
    else {
        return false;
    };
    let Op::MoeRoute(dims) = route else { return false };
    let is_chosen = |op: Op, want: Epilogue| match op {
        Op::MoeMatmul { experts, top_k, epilogue, .. } => {
            experts == dims.experts && top_k == dims.top_k && epilogue == want
        }
        _ => false,
    };
    matches!(norm, Op::RmsNorm { .. })
        && matches!(router, Op::Matmul { epilogue: Epilogue::None, .. })
        && is_chosen(up, Epilogue::Relu2)
        && up_rounded == Op::Quantize(F16)
        && is_chosen(down, Epilogue::None)
        && combine == Op::MoeCombine { top_k: dims.top_k, residual: true }
        && matches!(shared_up, Op::Matmul { epilogue: Epilogue::Relu2, .. })
        && shared_rounded == Op::Quantize(F16)
        && matches!(shared_down, Op::Matmul { epilogue: Epilogue::Residual, .. })
}

/// Whether every call reads what the ones before it made.
fn has_flow(calls: &[Call]) -> bool {
    let reads = |reader: usize, port: usize, maker: usize, output: usize| {
        calls[reader].inputs[port] == calls[maker].outputs[output]
    };
    let reads_norm = |reader: usize| calls[NORM].rounded == Some(calls[reader].inputs[0]);
    let is_rounded_elsewhere = calls[1..].iter().any(|call| call.rounded.is_some());
    !is_rounded_elsewhere
        && reads(ROUTER, 0, NORM, 0)
        && reads(ROUTE, 0, ROUTER, 0)
        && reads_norm(UP)
        && reads(UP, 1, ROUTE, 0)
        && reads(UP_ROUNDED, 0, UP, 0)
        && reads(DOWN, 0, UP_ROUNDED, 0)
        && reads(DOWN, 1, ROUTE, 0)
        && reads(COMBINE, 0, DOWN, 0)
        && reads(COMBINE, 1, ROUTE, 1)
        && calls[COMBINE].inputs[2] == calls[NORM].inputs[0]
        && reads_norm(SHARED_UP)
        && reads(SHARED_UP_ROUNDED, 0, SHARED_UP, 0)
        && reads(SHARED_DOWN, 0, SHARED_UP_ROUNDED, 0)
        && reads(SHARED_DOWN, 1, COMBINE, 0)
}
