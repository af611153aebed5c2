//! `ssm_conv`: `y[t,c] = SiLU(bias[c] + Σ_k w[c,k]·xBC[t−K+1+k, c])` over x, B and C; columns before the
//! sequence are zero. The raw columns go into the slot's convolution ring.
//!
//! Tolerance: a few products and one exponential in f32.

use super::gated_group_norm::silu;
use crate::cache::Rollback;
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::SsmDims;
use crate::op::Op;

/// One row from the last K raw columns, oldest first, in f64.
pub fn reference(columns: &[Vec<f32>], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let taps = columns.len();
    let value = |c: usize| {
        let sum: f64 = (0..taps).map(|k| f64::from(weight[c * taps + k]) * f64::from(columns[k][c])).sum();
        silu(f64::from(bias[c]) + sum) as f32
    };
    (0..bias.len()).map(value).collect()
}

/// Mixer sizes that the recurrent ops are tried on: small, odd, one group, released.
pub const DIMS: [SsmDims; 4] = [
    SsmDims { heads: 8, head_dim: 16, state: 16, groups: 4, taps: 4 },
    SsmDims { heads: 6, head_dim: 20, state: 12, groups: 3, taps: 4 },
    SsmDims { heads: 3, head_dim: 5, state: 7, groups: 1, taps: 3 },
    SsmDims { heads: 8, head_dim: 80, state: 128, groups: 2, taps: 4 },
];

/// Sequences shorter than the history, and both slot depths.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(15);
    let case = |(index, dims): (usize, &SsmDims)| {
        let channels = dims.conv_dim();
        let mut case =
            Case::new(format!("{channels} channels, {} taps", dims.taps), Op::SsmConv(*dims), &RAGGED, 4e-6)
                .weight(CaseWeight::f32(&[channels, dims.taps], &rng.normals(channels * dims.taps, 0.5)))
                .weight(CaseWeight::f32(&[channels], &rng.normals(channels, 0.5)))
                .input(channels, || rng.normal());
        case.rollback = if index % 2 == 0 { Rollback::None } else { Rollback::OneChunk };
        case
    };
    DIMS.iter().enumerate().map(case).collect()
}
