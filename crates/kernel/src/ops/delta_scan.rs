//! `delta_scan`: the gated delta rule. Inputs q, k and v side by side after the convolution, the raw write strengths
//! b and the raw decays r. Per head h with key group j, state `S ∈ [N, P]`:
//!
//! `k = k_j / sqrt(|k_j|² + 1e-6)`, `q = q_j / sqrt((|q_j|² + 1e-6) · N)`, `g = a · softplus(r + dt_bias)`,
//! `S' = exp(g) · S`, `u = sigmoid(b) · (v − S'ᵀ·k)`, `S = S' + k ⊗ u` and `y = Sᵀ·q`.
//!
//! What the slot holds between steps is the state at the start of the chunk and the ring of u, k and g since, in the
//! places of x, B and dt (see [`SlotLayout`]). With c the sum of g from the chunk's start,
//! `u_t = β_t (v_t − exp(c_t) S0ᵀ·k_t − Σ_{s<t} exp(c_t − c_s) (k_s·k_t) u_s)` and
//! `y_t = exp(c_t) S0ᵀ·q_t + Σ_{s≤t} exp(c_t − c_s) (k_s·q_t) u_s`, so a chunk is a triangular system and a token
//! needs no more than the ring. The state at a chunk's end is rounded when it is stored.
//!
//! Tolerance: as `ssm_scan`; errors in u pass on to later tokens of the chunk. With few states k·q may cancel to nearly
//! nothing, and at position 0 every output is a multiple of it.

use crate::cache::{Rollback, SSM_CHUNK, SlotLayout};
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::SsmDims;
use crate::op::Op;
use crate::ops::ssm_dt::softplus;

/// Added to the squares of q and k.
const NORM_EPS: f64 = 1e-6;

/// The raw inputs of one token.
pub struct Token<'a> {
    /// q, k and v side by side.
    pub qkv: &'a [f32],
    /// Raw write strengths, one per head.
    pub strength: &'a [f32],
    /// Raw decays, one per head.
    pub decay: &'a [f32],
}

fn unit(x: &[f32]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = 1.0 / (squares + NORM_EPS).sqrt();
    x.iter().map(|&x| f64::from(x) * scale).collect()
}

/// Steps one token and returns y. `slot` is the layer's part of the slot.
pub fn reference(
    layout: &SlotLayout,
    slot: &mut [f32],
    position: usize,
    token: &Token,
    a: &[f32],
    dt_bias: &[f32],
) -> Vec<f32> {
    let dims = layout.dims;
    let (n, p, width) = (dims.state, dims.head_dim, dims.group_state());
    let (q, rest) = token.qkv.split_at(width);
    let (k, v) = rest.split_at(width);
    let entry = position % layout.ring_capacity;
    for group in 0..dims.groups {
        let k: Vec<f32> = unit(&k[group * n..][..n]).iter().map(|k| *k as f32).collect();
        slot[layout.ring_b + entry * width + group * n..][..n].copy_from_slice(&k);
    }
    let chunk_start = position - position % SSM_CHUNK;
    let ends_chunk = (position + 1).is_multiple_of(SSM_CHUNK);
    let mut y = vec![0.0; dims.inner()];
    for head in 0..dims.heads {
        let group = head / (dims.heads / dims.groups);
        let g = f64::from(a[head]) * softplus(f64::from(token.decay[head]) + f64::from(dt_bias[head]));
        slot[layout.ring_dt + entry * dims.heads + head] = g as f32;
        let mut state = vec![0f64; n * p];
        if chunk_start > 0 {
            let stored = layout.load_state(slot, chunk_start, head);
            state.iter_mut().zip(stored).for_each(|(s, v)| *s = f64::from(v));
        }
        let ring_k = |slot: &[f32], at: usize| -> Vec<f64> {
            let row = at % layout.ring_capacity * width + group * n;
            slot[layout.ring_b + row..][..n].iter().map(|k| f64::from(*k)).collect()
        };
        let ring_u = layout.ring_x + head * p;
        for s in chunk_start..position {
            let at = s % layout.ring_capacity;
            let decay = f64::from(slot[layout.ring_dt + at * dims.heads + head]).exp();
            let u = slot[ring_u + at * dims.inner()..][..p].to_vec();
            step(&mut state, decay, &ring_k(slot, s), &u);
        }
        let decay = f64::from(slot[layout.ring_dt + entry * dims.heads + head]).exp();
        let k = ring_k(slot, position);
        let strength = 1.0 / (1.0 + (-f64::from(token.strength[head])).exp());
        let read =
            |state: &[f64], by: &[f64], c: usize| -> f64 { (0..n).map(|i| by[i] * state[i * p + c]).sum() };
        let u: Vec<f32> = (0..p)
            .map(|c| (strength * (f64::from(v[head * p + c]) - decay * read(&state, &k, c))) as f32)
            .collect();
        slot[ring_u + entry * dims.inner()..][..p].copy_from_slice(&u);
        step(&mut state, decay, &k, &u);
        let q = unit(&q[group * n..][..n]);
        let scale = 1.0 / (n as f64).sqrt();
        (0..p).for_each(|c| y[head * p + c] = (scale * read(&state, &q, c)) as f32);
        if ends_chunk {
            let state: Vec<f32> = state.iter().map(|v| *v as f32).collect();
            layout.store_state(slot, position + 1, head, &state);
        }
    }
    y
}

/// `S = decay · S + k ⊗ u`.
fn step(state: &mut [f64], decay: f64, k: &[f64], u: &[f32]) {
    for (row, k) in state.chunks_mut(u.len()).zip(k) {
        row.iter_mut().zip(u).for_each(|(s, u)| *s = decay * *s + k * f64::from(*u));
    }
}

/// Small, odd, one group, released sizes; both slot depths; many chunks.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(40);
    let sizes = [
        (SsmDims { heads: 4, head_dim: 12, state: 8, groups: 2, taps: 4 }, Rollback::None),
        (SsmDims { heads: 6, head_dim: 20, state: 12, groups: 3, taps: 4 }, Rollback::OneChunk),
        (SsmDims { heads: 3, head_dim: 5, state: 7, groups: 1, taps: 3 }, Rollback::None),
        (SsmDims { heads: 4, head_dim: 128, state: 128, groups: 2, taps: 4 }, Rollback::OneChunk),
    ];
    let case = |&(dims, rollback): &(SsmDims, Rollback)| {
        let decays: Vec<f32> = (0..dims.heads).map(|_| -rng.range(0.05, 2.0)).collect();
        let name = format!("{} heads of {}, {} states", dims.heads, dims.head_dim, dims.state);
        let tolerance = if dims.state < 8 { 1e-3 } else { 2e-5 };
        let mut case = Case::new(name, Op::DeltaScan(dims), &RAGGED, tolerance)
            .weight(CaseWeight::f32(&[dims.heads], &decays))
            .weight(CaseWeight::f32(&[dims.heads], &rng.normals(dims.heads, 0.5)))
            .input(dims.conv_dim(), || rng.normal())
            .input(dims.heads, || rng.normal() * 2.0)
            .input(dims.heads, || rng.normal());
        case.rollback = rollback;
        case
    };
    sizes.iter().map(case).collect()
}
