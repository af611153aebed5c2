//! The family's GGUF files. Qwen3-Next (`qwen3next`) keeps value heads as they are used; Qwen 3.5 (`qwen35`,
//! `qwen35moe`) stores them by their number within a key head first.
//!
//! Models with experts are written as `qwen3next`, whose order costs nothing; the others can only be `qwen35`.

use mambo_kernel::SsmDims;

use super::{gate_piece, group_pieces, head_piece, pieces};
use crate::error::ModelError;
use crate::export::Order;
use crate::families::gguf::{self, Arrangement, Dialect, Keys};
use crate::families::spelling::{Pick, Table, whole};
use crate::gguf::GgufReader;
use crate::names::{Part, Place};
use crate::spec::{Mixer, ModelSpec};
use crate::weights::Weight;

/// Old files join the projections as the release does.
pub(super) static TENSORS: Table = &[
    (Part::MlpNorm, &[whole("post_attention_norm.weight")]),
    (Part::Q, &[pieces("attn_q.weight", |mixer, _| vec![head_piece(mixer, 0)])]),
    (Part::QGate, &[pieces("attn_q.weight", |mixer, _| vec![head_piece(mixer, 1)])]),
    (
        Part::DeltaQkv,
        &[
            pieces("attn_qkv.weight", repeated_keys),
            pieces("ssm_in.weight", |mixer, _| group_pieces(mixer)[..3].to_vec()),
        ],
    ),
    (
        Part::DeltaZ,
        &[whole("attn_gate.weight"), pieces("ssm_in.weight", |mixer, _| group_pieces(mixer)[3..].to_vec())],
    ),
    (
        Part::DeltaStrength,
        &[whole("ssm_beta.weight"), pieces("ssm_ba.weight", |mixer, _| vec![gate_piece(mixer, 0)])],
    ),
    (
        Part::DeltaDecay,
        &[whole("ssm_alpha.weight"), pieces("ssm_ba.weight", |mixer, _| vec![gate_piece(mixer, 1)])],
    ),
    (Part::ConvWeight, &[pieces("ssm_conv1d.weight", repeated_keys)]),
];

pub(super) const NEXT: Dialect = Dialect { is_gated: true, ..gguf::PLAIN };
const QWEN35: Dialect = Dialect { tiled_values: true, ..NEXT };

pub(super) fn read(reader: &GgufReader) -> Result<ModelSpec, ModelError> {
    gguf::read(reader, if reader.architecture == "qwen3next" { &NEXT } else { &QWEN35 })
}

fn has_experts(spec: &ModelSpec) -> bool {
    spec.mixers().any(|mixer| matches!(mixer, Mixer::Moe(_)))
}

pub(super) fn write(spec: &ModelSpec) -> (&'static str, Keys) {
    match has_experts(spec) {
        true => ("qwen3next", gguf::keys(spec, &NEXT)),
        false => ("qwen35", gguf::keys(spec, &QWEN35)),
    }
}

/// Rows of queries and keys, once for every value head where fewer key heads are stored, then all values.
fn repeated_keys(mixer: &Mixer, stored: usize) -> Vec<Pick> {
    let Mixer::DeltaNet(d) = mixer else { return Vec::new() };
    let keys = stored.saturating_sub(d.inner()) / 2;
    let stored_groups = keys / d.state.max(1);
    if stored_groups == d.groups || stored_groups == 0 {
        return Vec::new();
    }
    let pick = |start, count| Pick { period: stored, start, count };
    let heads =
        |first: usize| (0..d.groups).map(move |head| pick(first + head % stored_groups * d.state, d.state));
    heads(0).chain(heads(keys)).chain([pick(2 * keys, d.inner())]).collect()
}

/// How a weight lies in a file that is written.
pub(super) fn arrange(spec: &ModelSpec, weight: &Weight) -> Option<Arrangement> {
    let Place::Layer(index) = weight.place else { return Some(Arrangement::PLAIN) };
    let delta = spec.layers[index].mixers().find_map(|mixer| match mixer {
        Mixer::DeltaNet(dims) => Some(dims),
        _ => None,
    });
    match (delta, has_experts(spec)) {
        (None, _) => gguf::arrange(spec, weight, &NEXT),
        (Some(dims), true) => grouped(dims, weight),
        (Some(dims), false) => Some(tiled(dims, weight)),
    }
}

/// Strengths and decays share a tensor, key head by key head.
fn grouped(dims: &SsmDims, weight: &Weight) -> Option<Arrangement> {
    match weight.part {
        Part::DeltaDecay => None,
        Part::DeltaStrength => Some(Arrangement {
            name: Some("ssm_ba.weight"),
            rows: Order::InTurn { run: dims.heads / dims.groups },
            joined: Some(Part::DeltaDecay),
            ..Arrangement::PLAIN
        }),
        _ => Some(Arrangement::PLAIN),
    }
}

fn tiled(dims: &SsmDims, weight: &Weight) -> Arrangement {
    let heads =
        |first, head| Order::Tiled { first, head, groups: dims.groups, per_group: dims.heads / dims.groups };
    let rows = match weight.part {
        Part::DeltaQkv | Part::ConvWeight => heads(2 * dims.group_state(), dims.head_dim),
        Part::DeltaZ => heads(0, dims.head_dim),
        Part::DeltaStrength | Part::DeltaDecay | Part::A | Part::DtBias => heads(0, 1),
        _ => Order::Same,
    };
    let columns = if weight.part == Part::OutProj { heads(0, dims.head_dim) } else { Order::Same };
    Arrangement { rows, columns, ..Arrangement::PLAIN }
}
