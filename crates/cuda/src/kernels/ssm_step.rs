//! `ssm_step`: of short segments, and of one token per sequence in one launch.

use mambo_kernel::{BackendError, Op, OpKind, Phase, SSM_CHUNK, Site, SsmDims, StateElem};

use super::binding::Binding;
use super::declaration::Declaration;
use super::gated_group_norm::{MOST_CHANNELS, NORM_BLOCK, NORM_PIECE, norm_shared_bytes};
use super::round::{is_in_fours, rounded, rounds};
use super::slot::{
    ODD, PART_CHANNELS, RELEASED, SlotView, chunk_shared_bytes, chunk_threads, head_blocks, is_scannable,
    segment_blocks, sized,
};
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Expects, Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct SsmStepParams {
        step: Ptr<StepTable>,
        x: View,
        out: View,
        rounded: View,
        conv_weight: Ptr<f32>,
        conv_bias: Ptr<f32>,
        dt_bias: Ptr<f32>,
        a: Ptr<f32>,
        d: Ptr<f32>,
        norm: Ptr<f32>,
        slots: SlotView,
        rounded_kind: u32,
        eps: f32,
        /// Sums of squares that the blocks of `ssm_row` leave, by row and piece.
        sums: Ptr<f32>,
        /// Where the next kernel normalises the row: raw columns of B and C that it is to keep, and the address for them.
        raw: Ptr<f32>,
        raw_at: Ptr<u64>,
        /// Whether another kernel normalises rows.
        is_normed_apart: u32,
        unused: u32,
    }
}

static SOURCE: Source = Source {
    stem: "ssm_step",
    text: include_str!("../../kernels/ssm_step.cu"),
    structs: &[SlotView::c_text, SsmStepParams::c_text],
};

static ROW: Source = Source {
    stem: "ssm_row",
    text: include_str!("../../kernels/ssm_row.cu"),
    structs: &[SlotView::c_text, SsmStepParams::c_text],
};

/// Most sequences of a step that `ssm_row` counts the blocks of.
const MOST_ROWS: usize = 1024;

/// Rows from which a kernel that normalises them takes less than the arrivals that it replaces.
const NORMED_APART: usize = 16;

/// Taps that a thread reads at once.
const MOST_TAPS: usize = 8;

fn kernel(entry: &'static str, dims: &SsmDims, elem: StateElem) -> Specialisation {
    let kernel = sized(Specialisation::new(&SOURCE, entry), dims, elem, chunk_shared_bytes(dims));
    kernel.define("TAPS", dims.taps)
}

/// Whether the sizes are such that a block's threads divide them evenly.
fn is_even(dims: &SsmDims) -> bool {
    dims.state.is_multiple_of(32)
        && dims.head_dim.is_multiple_of(NORM_PIECE)
        && dims.inner().is_multiple_of(64)
        && dims.inner() <= MOST_CHANNELS
}

/// `BoundaryShared` in ssm_row.cu.
fn row_shared_bytes(dims: &SsmDims) -> u32 {
    (SSM_CHUNK * (4 * (dims.state + 8) + 4 * (PART_CHANNELS + 8) + 8)) as u32
}

fn row_kernel(entry: &'static str, dims: &SsmDims, elem: StateElem) -> Specialisation {
    let kernel = sized(Specialisation::new(&ROW, entry), dims, elem, chunk_shared_bytes(dims));
    let kernel = kernel.define("TAPS", dims.taps).define("MOST_ROWS", MOST_ROWS);
    kernel.define("ROW_SHARED_BYTES", row_shared_bytes(dims))
}

/// The kernels of steps of one token per sequence.
fn row_kernels(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    let row = row_kernel("ssm_row", dims, elem).expecting(Expects::Mma);
    [row, row_kernel("ssm_row_finish", dims, elem)]
}

/// The kernels of these sizes, for states of every type.
pub(crate) fn sizes(dims: &SsmDims) -> Vec<Specialisation> {
    let rows = StateElem::ALL.map(|elem| row_kernels(dims, elem)).concat();
    [StateElem::ALL.map(|elem| both(dims, elem)).concat(), rows].concat()
}

fn both(dims: &SsmDims, elem: StateElem) -> [Specialisation; 2] {
    [kernel("ssm_step", dims, elem).expecting(Expects::Mma), kernel("ssm_step_finish", dims, elem)]
}

pub(crate) fn declare(arch: Arch) -> Vec<Declaration> {
    let accepts = move |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => {
            site.phase != Phase::Prefill
                && is_scannable(dims, chunk_shared_bytes(dims), arch)
                && (2..=MOST_TAPS).contains(&dims.taps)
                && dims.inner() <= MOST_CHANNELS
        }
        _ => false,
    };
    let is_row = move |site: &Site| {
        let is_even = matches!(site.op, Op::SsmStep { dims, .. } if is_even(dims));
        is_even && site.phase == Phase::Decode && accepts(site)
    };
    let rows = StateElem::ALL.map(|elem| row_kernels(&RELEASED, elem)).concat();
    let segments =
        [StateElem::ALL.map(|elem| both(&RELEASED, elem)).concat(), both(&ODD, StateElem::F16).to_vec()];
    vec![
        Declaration::new(OpKind::SsmStep, "row.f32", rows, bind_rows)
            .offering(|row| row.accepting(is_row).rounding(rounds)),
        Declaration::new(OpKind::SsmStep, "f32", segments.concat(), bind)
            .offering(|row| row.accepting(accepts).rounding(rounds)),
    ]
}

fn params(binding: &Binding) -> Result<(SsmDims, SsmStepParams), BackendError> {
    let Op::SsmStep { dims, eps } = binding.call.op else { binding.wrong_op() };
    let (rounded, rounded_kind) = rounded(binding);
    let params = SsmStepParams {
        step: binding.step,
        x: binding.input(0),
        out: binding.output(0),
        rounded,
        conv_weight: binding.vector(0, dims.conv_dim() * dims.taps)?,
        conv_bias: binding.vector(1, dims.conv_dim())?,
        dt_bias: binding.vector(2, dims.heads)?,
        a: binding.vector(3, dims.heads)?,
        d: binding.vector(4, dims.heads)?,
        norm: binding.vector(5, dims.inner())?,
        slots: SlotView::of(&binding.slots()),
        rounded_kind,
        eps,
        sums: Ptr::NULL,
        raw: Ptr::NULL,
        raw_at: Ptr::NULL,
        is_normed_apart: 0,
        unused: 0,
    };
    Ok((dims, params))
}

/// Whether `ssm_row` can run a step of so many tokens.
fn fits_rows(binding: &Binding) -> bool {
    // Vectors of four are read of the rows.
    binding.bucket.tokens <= MOST_ROWS
        && binding.slots().layout.chunks.is_power_of_two()
        && binding.call.inputs.iter().chain(&binding.call.outputs).all(is_in_fours)
}

fn row_launch(binding: &Binding, dims: &SsmDims, params: &SsmStepParams) -> Launch {
    Launch::new(row_kernel("ssm_row", dims, binding.slots().layout.elem), params)
        .grid([head_blocks(dims), binding.bucket.tokens as u32, 1])
        .block(chunk_threads(dims))
        .shared(row_shared_bytes(dims))
}

fn bind_rows(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    if !fits_rows(binding) {
        return bind(binding);
    }
    let (dims, params) = params(binding)?;
    let sums = binding.bucket.tokens * dims.inner() / NORM_PIECE * size_of::<f32>();
    let sums = binding.scratch(sums).cast();
    let tokens = binding.bucket.tokens;
    let is_normed_apart = tokens >= NORMED_APART;
    let params = SsmStepParams { sums, is_normed_apart: u32::from(is_normed_apart), ..params };
    let row = row_launch(binding, &dims, &params);
    if !is_normed_apart {
        return Ok(vec![row]);
    }
    let finish = row_kernel("ssm_row_finish", &dims, binding.slots().layout.elem);
    let finish = Launch::new(finish, &params).grid([tokens as u32, 1, 1]).block(chunk_threads(&dims));
    Ok(vec![row, finish])
}

/// What `ssm_row` leaves of one row to a kernel that normalises it.
pub(super) struct Gated {
    pub launch: Launch,
    pub values: Ptr<f32>,
    pub norm: Ptr<f32>,
    pub sums: Ptr<f32>,
    pub raw: Ptr<f32>,
    pub raw_at: Ptr<u64>,
    pub raw_cols: u32,
    pub cols: u32,
    pub groups: usize,
    pub eps: f32,
}

/// `ssm_row` of one token without its norm; none where it does not run.
pub(super) fn bind_gated(binding: &Binding) -> Result<Option<Gated>, BackendError> {
    let (dims, params) = params(binding)?;
    if binding.bucket.tokens != 1 || !is_even(&dims) || !fits_rows(binding) {
        return Ok(None);
    }
    let floats = |count: usize| binding.scratch(count * size_of::<f32>());
    let raw_cols = 2 * dims.group_state();
    let (sums, raw, raw_at) =
        (floats(dims.inner() / NORM_PIECE).cast(), floats(raw_cols).cast(), floats(2).cast());
    // Others may have the output's place when the next kernel reads it.
    let out = View { data: floats(dims.inner()), ..params.out };
    let params = SsmStepParams { sums, raw, raw_at, out, is_normed_apart: 1, ..params };
    Ok(Some(Gated {
        launch: row_launch(binding, &dims, &params),
        values: out.data.cast(),
        norm: params.norm,
        sums,
        raw,
        raw_at,
        raw_cols: raw_cols as u32,
        cols: params.out.cols,
        groups: dims.groups,
        eps: params.eps,
    }))
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let (dims, params) = params(binding)?;
    let (tokens, elem) = (binding.bucket.tokens, binding.slots().layout.elem);
    let step = Launch::new(kernel("ssm_step", &dims, elem), &params)
        .grid([head_blocks(&dims), segment_blocks(tokens), 1])
        .block(chunk_threads(&dims))
        .shared(chunk_shared_bytes(&dims));
    // What several blocks have read: columns of B and C, and step sizes.
    let columns = (2 * dims.group_state() + dims.heads) as u32;
    let finish = Launch::new(kernel("ssm_step_finish", &dims, elem), &params)
        .grid([tokens as u32, 1 + columns.div_ceil(NORM_BLOCK), 1])
        .block(NORM_BLOCK)
        .shared(norm_shared_bytes(dims.inner(), dims.groups));
    Ok(vec![step, finish])
}
