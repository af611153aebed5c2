//! `ssm_scan`: the Mamba-2 recurrence. Inputs xBC after the convolution and dt after softplus; per head
//! h with group g, state `S ∈ [N, P]`:
//!
//! `S = exp(dt·A)·S + dt · B_g ⊗ x` and `y = Cᵀ_g·S + D·x`.
//!
//! What the slot holds between steps is the state at the start of the chunk and the ring of x, B and dt
//! since (see [`SlotLayout`]). Kernels use the chunked form, the reference steps through the chunk.
//! The state at a chunk's end is rounded to the slot's element type when it is stored, and the next chunk
//! starts from what was stored.
//! Tolerance: f32 sums over the state and the chunk, and exponents that are differences of f32 sums. Where
//! states are narrow, a difference in the last bit of f32 sometimes decides which way a state is rounded.

use super::ssm_conv::DIMS;
use crate::cache::{Rollback, SSM_CHUNK, SlotLayout};
use crate::cache_elem::StateElem;
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::SsmDims;
use crate::op::Op;

/// Steps one token and returns y. `slot` is the layer's part of the slot.
pub fn reference(
    layout: &SlotLayout,
    slot: &mut [f32],
    position: usize,
    xbc: &[f32],
    dt: &[f32],
    a: &[f32],
    d: &[f32],
) -> Vec<f32> {
    let dims = layout.dims;
    let (inner, width) = (dims.inner(), dims.group_state());
    let (x, rest) = xbc.split_at(inner);
    let (b, c) = rest.split_at(width);
    let entry = position % layout.ring_capacity;
    slot[layout.ring_x + entry * inner..][..inner].copy_from_slice(x);
    slot[layout.ring_b + entry * width..][..width].copy_from_slice(b);
    slot[layout.ring_dt + entry * dims.heads..][..dims.heads].copy_from_slice(dt);

    let chunk_start = position - position % SSM_CHUNK;
    let ends_chunk = (position + 1).is_multiple_of(SSM_CHUNK);
    let mut y = vec![0.0; inner];
    for head in 0..dims.heads {
        let state = state_after(layout, slot, chunk_start, position, head, a[head]);
        let c = &c[head / (dims.heads / dims.groups) * dims.state..][..dims.state];
        for p in 0..dims.head_dim {
            let i = head * dims.head_dim + p;
            let carried: f64 = (0..dims.state).map(|n| f64::from(c[n]) * state[n * dims.head_dim + p]).sum();
            y[i] = (carried + f64::from(d[head]) * f64::from(x[i])) as f32;
        }
        if ends_chunk {
            let state: Vec<f32> = state.iter().map(|v| *v as f32).collect();
            layout.store_state(slot, position + 1, head, &state);
        }
    }
    y
}

/// One head's state after `position`, stepped from the start of the chunk, `[N, P]`.
fn state_after(
    layout: &SlotLayout,
    slot: &[f32],
    chunk_start: usize,
    position: usize,
    head: usize,
    a: f32,
) -> Vec<f64> {
    let dims = layout.dims;
    let size = dims.state * dims.head_dim;
    let mut state = vec![0f64; size];
    if chunk_start > 0 {
        for (s, v) in state.iter_mut().zip(layout.load_state(slot, chunk_start, head)) {
            *s = f64::from(v);
        }
    }
    for s in chunk_start..=position {
        let entry = s % layout.ring_capacity;
        let dt = f64::from(slot[layout.ring_dt + entry * dims.heads + head]);
        let x = &slot[layout.ring_x + entry * dims.inner() + head * dims.head_dim..][..dims.head_dim];
        let group = head / (dims.heads / dims.groups);
        let b = &slot[layout.ring_b + entry * dims.group_state() + group * dims.state..][..dims.state];
        let decay = (dt * f64::from(a)).exp();
        for n in 0..dims.state {
            for p in 0..dims.head_dim {
                let cell = &mut state[n * dims.head_dim + p];
                *cell = decay * *cell + dt * f64::from(b[n]) * f64::from(x[p]);
            }
        }
    }
    state
}

/// Weights `a` and `d` with decays from nearly none to nearly total.
pub(super) fn head_weights(rng: &mut Rng, dims: &SsmDims) -> [CaseWeight; 2] {
    let a: Vec<f32> = (0..dims.heads).map(|_| -rng.range(-4.0, 2.5).exp()).collect();
    [CaseWeight::f32(&[dims.heads], &a), CaseWeight::f32(&[dims.heads], &rng.normals(dims.heads, 1.0))]
}

/// How far narrow states may be from the reference's: one unit in the last place.
pub(super) fn state_tolerance(elem: StateElem) -> f32 {
    match elem {
        StateElem::F32 => 0.0,
        StateElem::F16 => 1e-3,
        StateElem::BF16 => 8e-3,
    }
}

/// Slow and fast decay, tiny and large steps, both slot depths, every type of state.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(16);
    let mut cases = Vec::new();
    let steps = [(1e-5, 1e-3), (0.01, 2.0)].map(|dt| (dt, StateElem::F32));
    let narrow = [StateElem::F16, StateElem::BF16].map(|elem| ((0.01, 2.0), elem));
    for (index, dims) in DIMS.iter().enumerate() {
        for ((low, high), elem) in steps.into_iter().chain(narrow) {
            let [a, d] = head_weights(&mut rng, dims);
            let name = format!(
                "{} heads of {}x{}, dt {low}..{high}, {} states",
                dims.heads,
                dims.head_dim,
                dims.state,
                elem.name()
            );
            let mut case = Case::new(name, Op::SsmScan(*dims), &RAGGED, 3e-5 + state_tolerance(elem))
                .weight(a)
                .weight(d)
                .input(dims.conv_dim(), || rng.normal())
                .input(dims.heads, || rng.range(low, high));
            case.state_elem = elem;
            case.rollback = if index % 2 == 0 { Rollback::None } else { Rollback::OneChunk };
            cases.push(case);
        }
    }
    cases
}
