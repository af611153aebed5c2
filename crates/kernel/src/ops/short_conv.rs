//! `short_conv`: LFM2's gated convolution. The input is `[b c x]`, three vectors of C channels:
//! `y[t] = c[t] · (bias + Σ_k w[·,k]·(b·x)[t−K+1+k])`, columns before the sequence being zero. The products
//! `b·x` go into the slot's convolution ring.
//!
//! Tolerance: a few products in f32.

use crate::cache::Rollback;
use crate::case::{Case, CaseWeight, RAGGED, Rng};
use crate::dims::SsmDims;
use crate::op::Op;

/// The column that goes into the ring.
pub fn column(input: &[f32]) -> Vec<f32> {
    let channels = input.len() / 3;
    (0..channels).map(|c| input[c] * input[2 * channels + c]).collect()
}

/// One row from the last K columns, oldest first, and the row's input.
pub fn reference(columns: &[Vec<f32>], input: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let (taps, channels) = (columns.len(), input.len() / 3);
    let value = |c: usize| {
        let sum: f64 = (0..taps).map(|k| f64::from(weight[c * taps + k]) * f64::from(columns[k][c])).sum();
        (f64::from(input[channels + c]) * (f64::from(bias[c]) + sum)) as f32
    };
    (0..channels).map(value).collect()
}

/// The sizes of a convolution over so many channels.
pub fn dims(channels: usize, taps: usize) -> SsmDims {
    SsmDims { heads: 1, head_dim: channels, state: 0, groups: 1, taps }
}

/// Sequences shorter than the history, and both slot depths.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(39);
    let case = |&(channels, taps, rollback): &(usize, usize, Rollback)| {
        let mut case = Case::new(
            format!("{channels} channels, {taps} taps"),
            Op::ShortConv(dims(channels, taps)),
            &RAGGED,
            4e-6,
        )
        .weight(CaseWeight::f32(&[channels, taps], &rng.normals(channels * taps, 0.5)))
        .weight(CaseWeight::f32(&[channels], &rng.normals(channels, 0.5)))
        .input(3 * channels, || rng.normal());
        case.rollback = rollback;
        case
    };
    let sizes = [(56, 3, Rollback::None), (33, 4, Rollback::OneChunk), (1024, 3, Rollback::None)];
    sizes.iter().map(case).collect()
}
