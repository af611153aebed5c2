//! `ssm_scan`: the Mamba-2 recurrence. Inputs xBC after the convolution and dt after softplus; per head
//! h with group g, state `S ∈ [N, P]`:
//!
//! `S = exp(dt·A)·S + dt · B_g ⊗ x` and `y = Cᵀ_g·S + D·x`.
//!
//! What the slot holds between steps is the state at the start of the chunk and the ring of x, B and dt
//! since (see [`SlotLayout`]). Kernels use the chunked form, the reference steps through the chunk.
//! Tolerance: f32 sums over the state and the chunk, and exponents that are differences of f32 sums.

use super::ssm_conv::DIMS;
use crate::cache::{Rollback, SSM_CHUNK, SlotLayout};
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::{Op, SsmDims};

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
            let at = layout.state_at(position + 1) + head * state.len();
            for (out, value) in slot[at..].iter_mut().zip(&state) {
                *out = *value as f32;
            }
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
        let at = layout.state_at(chunk_start) + head * size;
        for (s, &v) in state.iter_mut().zip(&slot[at..at + size]) {
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

/// Slow and fast decay, tiny and large steps, both slot depths.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(16);
    let mut cases = Vec::new();
    for (index, dims) in DIMS.iter().enumerate() {
        for (low, high) in [(1e-5, 1e-3), (0.01, 2.0)] {
            let [a, d] = head_weights(&mut rng, dims);
            let name = format!("{} heads of {}x{}, dt {low}..{high}", dims.heads, dims.head_dim, dims.state);
            let mut case = Case::new(name, Op::SsmScan(*dims), &RAGGED, 3e-5)
                .weight(a)
                .weight(d)
                .input(dims.conv_dim(), || rng.normal())
                .input(dims.heads, || rng.range(low, high));
            case.rollback = if index % 2 == 0 { Rollback::None } else { Rollback::OneChunk };
            cases.push(case);
        }
    }
    cases
}
