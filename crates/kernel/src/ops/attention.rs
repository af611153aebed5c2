//! `attention`: appends k and v of the step's rows to the cache, then for every query head h and row t
//! `y = Σ_s softmax_s(q·k_s / sqrt(head_dim))·v_s` over all positions `s ≤ t` of the sequence, with
//! key head `h / (q_heads / kv_heads)`. No position encoding of any kind.
//!
//! Page layout: for each layer every head's keys, then every head's values, a head as
//! [`KvElem::head_bytes`] says. Keys and values are rounded to their element types when they are appended,
//! also for the row itself; every type rounds to the same bits everywhere, so the tolerance is that of an
//! f32 softmax.

use crate::cache_elem::{KvElem, KvScale, KvTypes};
use crate::case::{Case, RAGGED, Rng};
use crate::op::{AttentionDims, Op};

/// One query row against the cached rows `[positions][kv_heads · head_dim]`, in f64.
pub fn reference(dims: &AttentionDims, q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f32> {
    let n = dims.head_dim;
    let scale = 1.0 / (n as f64).sqrt();
    let mut out = Vec::with_capacity(q.len());
    for (h, q) in q.chunks(n).enumerate() {
        let at = h / (dims.q_heads / dims.kv_heads) * n;
        let dot = |k: &Vec<f32>| {
            q.iter().zip(&k[at..at + n]).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>()
        };
        let scores: Vec<f64> = keys.iter().map(|k| dot(k) * scale).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mix =
            |c: usize| weights.iter().zip(values).map(|(w, v)| w * f64::from(v[at + c])).sum::<f64>() / total;
        out.extend((0..n).map(|c| mix(c) as f32));
    }
    out
}

/// Grouped heads, one head, odd head sizes, every pair of element types, scores flat and sharp, and long contexts.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(14);
    let sizes = [(4, 2, 32, 1.0), (6, 3, 20, 1.0), (1, 1, 12, 6.0), (8, 2, 64, 1.0), (5, 1, 128, 3.0)];
    let mut cases = Vec::new();
    for (row, k) in KvElem::ALL.into_iter().enumerate() {
        for (col, v) in KvElem::ALL.into_iter().enumerate() {
            // Every row and every column covers all sizes.
            let (q_heads, kv_heads, head_dim, sharp) = sizes[(row + col) % sizes.len()];
            let types = KvTypes { k, v };
            let dims = AttentionDims { q_heads, kv_heads, head_dim };
            let name = format!("{q_heads}/{kv_heads} heads of {head_dim}, {types} cache");
            let mut case = Case::new(name, Op::Attention(dims), &RAGGED, 1e-5)
                .input(q_heads * head_dim, || rng.normal() * sharp)
                .input(kv_heads * head_dim, || rng.normal())
                .input(kv_heads * head_dim, || rng.normal());
            case.kv_types = types;
            case.kv_scale = KvScale { k: 0.013, v: 0.37 };
            cases.push(case);
        }
    }
    // Contexts of some hundred positions, which backends may split over threads unless there are many heads. Sharp
    // scores differ by more than backends tolerate without rescaling their sums.
    let long = [
        (4, 2, 16, KvElem::F32, [1, 260, 520], 1.0),
        (10, 2, 24, KvElem::F16, [1, 40, 290], 1.0),
        (336, 1, 4, KvElem::F32, [2, 33, 520], 1.0),
        (5, 1, 12, KvElem::F16, [1, 40, 520], 12.0),
        (4, 2, 16, KvElem::F32, [1, 260, 520], 12.0),
    ];
    for (q_heads, kv_heads, head_dim, elem, lengths, sharp) in long {
        let dims = AttentionDims { q_heads, kv_heads, head_dim };
        let name = format!("{q_heads}/{kv_heads} heads of {head_dim}, long context, scores times {sharp}");
        let mut case = Case::new(name, Op::Attention(dims), &lengths, 1e-5)
            .input(q_heads * head_dim, || rng.normal() * sharp)
            .input(kv_heads * head_dim, || rng.normal())
            .input(kv_heads * head_dim, || rng.normal());
        case.kv_types = KvTypes { k: elem, v: elem };
        cases.push(case);
    }
    cases
}
