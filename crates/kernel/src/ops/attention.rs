//! `attention`: appends k and v of the step's rows to the cache, then for every query head h and row t
//! `y = Σ_s softmax_s(score(q·k_s · scale))·v_s` over all positions `s ≤ t` of the sequence, with
//! key head `h / (q_heads / kv_heads)`. A window of w leaves the positions `t − w < s ≤ t`; a cap makes scores
//! `cap · tanh(score / cap)`; with sinks the softmax runs over one score more, the head's own, which has no value.
//! Positions are the caller's: queries and keys come as they are to be multiplied.
//!
//! Page layout: for each layer every head's keys, then every head's values, a head as
//! [`KvElem::head_bytes`] says. Keys and values are rounded to their element types when they are appended,
//! also for the row itself; every type rounds to the same bits everywhere, so the tolerance is that of an
//! f32 softmax.

use crate::cache_elem::{KvElem, KvScale, KvTypes};
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::{Attention, AttentionDims};
use crate::op::Op;

/// One query row against the cached rows `[positions][kv_heads · head_dim]` that it sees, in f64; `sinks` are the
/// heads' own scores or none.
pub fn reference(
    attention: &Attention,
    q: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    sinks: &[f32],
) -> Vec<f32> {
    let dims = attention.dims;
    let n = dims.head_dim;
    let score = |product: f64| {
        let score = product * f64::from(attention.scale);
        attention.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let mut out = Vec::with_capacity(q.len());
    for (h, q) in q.chunks(n).enumerate() {
        let at = h / (dims.q_heads / dims.kv_heads) * n;
        let dot = |k: &Vec<f32>| {
            q.iter().zip(&k[at..at + n]).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>()
        };
        let scores: Vec<f64> = keys.iter().map(|k| score(dot(k))).collect();
        let sink = sinks.get(h).map(|sink| f64::from(*sink));
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
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
            let mut case = Case::new(name, Op::Attention(Attention::plain(dims)), &RAGGED, 1e-5)
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
        // Head sizes that matrix units take.
        (16, 1, 128, KvElem::F16, [1, 40, 530], 1.0),
        (4, 2, 64, KvElem::F16, [9, 33, 300], 6.0),
        (20, 1, 64, KvElem::F16, [3, 65, 130], 1.0),
    ];
    for (q_heads, kv_heads, head_dim, elem, lengths, sharp) in long {
        let dims = AttentionDims { q_heads, kv_heads, head_dim };
        let name = format!("{q_heads}/{kv_heads} heads of {head_dim}, long context, scores times {sharp}");
        let mut case = Case::new(name, Op::Attention(Attention::plain(dims)), &lengths, 1e-5)
            .input(q_heads * head_dim, || rng.normal() * sharp)
            .input(kv_heads * head_dim, || rng.normal())
            .input(kv_heads * head_dim, || rng.normal());
        case.kv_types = KvTypes { k: elem, v: elem };
        cases.push(case);
    }
    cases.extend(variants(&mut rng));
    cases
}

/// Windows of one token, within a page, of a page, of several and beyond the context; caps; sinks; other scales.
fn variants(rng: &mut Rng) -> Vec<Case> {
    let kinds = [
        (4, 2, 16, Some(1), None, false),
        (4, 2, 32, Some(12), None, false),
        (6, 3, 20, Some(32), None, true),
        (8, 1, 24, Some(33), Some(5.0), false),
        (8, 2, 64, Some(128), None, true),
        (16, 2, 64, Some(100), Some(20.0), true),
        (2, 2, 12, Some(4096), Some(50.0), true),
        (5, 1, 12, None, None, true),
        (4, 4, 40, None, Some(2.0), false),
    ];
    let case = |&(q_heads, kv_heads, head_dim, window, soft_cap, sinks): &(_, _, _, _, _, bool)| {
        let dims = AttentionDims { q_heads, kv_heads, head_dim };
        let attention = Attention { dims, scale: 0.21, window, soft_cap, sinks };
        let name = format!("{q_heads}/{kv_heads} heads, window {window:?}, cap {soft_cap:?}, sinks {sinks}");
        let mut case = Case::new(name, Op::Attention(attention), &[1, 2, 31, 32, 33, 70, 400], 1e-5);
        // The same window over a 16-bit cache.
        if q_heads == 16 {
            case.kv_types = KvTypes::both(KvElem::F16);
        }
        if sinks {
            case = case.weight(CaseWeight::f32(&[q_heads], &rng.normals(q_heads, 1.5)));
        }
        case.input(q_heads * head_dim, || rng.normal() * 2.0)
            .input(kv_heads * head_dim, || rng.normal())
            .input(kv_heads * head_dim, || rng.normal())
    };
    kinds.iter().map(case).collect()
}
