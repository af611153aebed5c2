//! `gated_group_norm`: `v = y · SiLU(z)`, then `rms_norm` of each group of consecutive channels on its
//! own, times a weight. The gate comes first; the groups are never joined.
//!
//! Tolerance: as `rms_norm`, plus the exponential of the gate.

use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::op::Op;

/// `x / (1 + exp(−x))`.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The gated norm of one row, in f64.
pub fn reference(y: &[f32], z: &[f32], weight: &[f32], groups: usize, eps: f32) -> Vec<f32> {
    let gated: Vec<f64> = y.iter().zip(z).map(|(&y, &z)| f64::from(y) * silu(f64::from(z))).collect();
    let size = y.len() / groups;
    let mut out = Vec::with_capacity(y.len());
    for (v, w) in gated.chunks(size).zip(weight.chunks(size)) {
        let mean = v.iter().map(|v| v * v).sum::<f64>() / size as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        out.extend(v.iter().zip(w).map(|(v, &w)| (v * scale * f64::from(w)) as f32));
    }
    out
}

/// Groups of odd width, gates from closed to wide open.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(7);
    let case = |&(groups, size, gate): &(usize, usize, f32)| {
        let cols = groups * size;
        let weight = CaseWeight::f32(&[cols], &rng.normals(cols, 1.0));
        let op = Op::GatedGroupNorm { groups, eps: 1e-5 };
        let case =
            Case::new(format!("{groups} groups of {size}, gate {gate}"), op, &RAGGED, 1e-5).weight(weight);
        case.input(cols, || rng.normal()).input(cols, || rng.normal() * gate)
    };
    [(1, 16, 1.0), (3, 20, 3.0), (4, 33, 1.0), (8, 128, 30.0)].iter().map(case).collect()
}
