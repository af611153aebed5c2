//! `ssm_step`: `ssm_conv`, `ssm_dt`, `ssm_scan` and `gated_group_norm` of segments of up to a chunk, from
//! the input projection `[z | x | B | C | dt]`. The norm's groups are the mixer's groups.
//!
//! Tolerance: the sum of its parts'. A kernel must also give the bits of the four ops it replaces.

use super::ssm_conv::DIMS;
use super::ssm_scan::{head_weights, state_tolerance};
use crate::cache_elem::StateElem;
use crate::case::{Case, CaseWeight, Rng};
use crate::op::Op;

/// The mixers of `ssm_conv`, a few chunks long, with every type of state.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(17);
    let case = |(dims, elem): (&crate::dims::SsmDims, StateElem)| {
        let (channels, inner) = (dims.conv_dim(), dims.inner());
        let [a, d] = head_weights(&mut rng, dims);
        let name =
            format!("{} heads of {}x{}, {} states", dims.heads, dims.head_dim, dims.state, elem.name());
        let tolerance = 6e-5 + state_tolerance(elem);
        let mut case = Case::new(name, Op::SsmStep { dims: *dims, eps: 1e-5 }, &[1, 3, 33, 70], tolerance)
            .weight(CaseWeight::f32(&[channels, dims.taps], &rng.normals(channels * dims.taps, 0.5)))
            .weight(CaseWeight::f32(&[channels], &rng.normals(channels, 0.5)))
            .weight(CaseWeight::f32(&[dims.heads], &rng.normals(dims.heads, 0.5)))
            .weight(a)
            .weight(d)
            .weight(CaseWeight::f32(&[inner], &rng.normals(inner, 1.0)))
            .input(dims.in_proj(), || rng.normal());
        case.state_elem = elem;
        case
    };
    DIMS.iter().flat_map(|dims| StateElem::ALL.map(|elem| (dims, elem))).map(case).collect()
}
