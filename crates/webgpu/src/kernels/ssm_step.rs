//! `ssm_step`: two launches where every sequence has one row; else those of the four ops it stands for, with what passes
//! between them in working memory. Both give the same bits.

use mambo_kernel::{
    BackendError, Call, Epilogue, Op, OpKind, Phase, Rows, SSM_CHUNK, Site, SsmDims, StateElem,
};

use super::binding::{Binding, Launch, StepFacts, rows_grid};
use super::declaration::Declaration;
use super::few::{Few, NormShape};
use super::matmul::is_aligned;
use super::norm::gated_group_norm;
use super::pointwise::{VALUES, ssm_dt};
use super::quantize::rounds;
use super::slot::{ODD, RELEASED, SlotView, flatten, head_parts, is_scannable, sized};
use super::ssm_conv::convolution;
use super::ssm_scan::scan;
use crate::params::{Params, View, WeightRows, narrow, params};
use crate::program::Calls;
use crate::source::{Source, Specialisation};
use crate::stored::Form;

params! {
    struct StepParams {
        x: View,
        c: View,
        out: View,
        weight: u32,
        bias: u32,
        dt_bias: u32,
        a: u32,
        d: u32,
        slots: SlotView,
    }
    struct ProjectedParams {
        x: View,
        out: View,
        c: View,
        weights: WeightRows,
        cols: u32,
        norm: u32,
        eps: f32,
        weight: u32,
        bias: u32,
        dt_bias: u32,
        slots: SlotView,
    }
}

fn projected_text() -> String {
    flatten(&ProjectedParams::wgsl())
}

fn params_text() -> String {
    flatten(&StepParams::wgsl())
}

static COLUMNS: Source = Source {
    stem: "ssm_step_columns",
    text: include_str!("../../kernels/ssm_step_columns.wgsl"),
    params: params_text,
};
static PROJECTED: Source = Source {
    stem: "matmul_columns",
    text: include_str!("../../kernels/matmul_columns.wgsl"),
    params: projected_text,
};
static SCAN: Source = Source {
    stem: "ssm_step_scan",
    text: include_str!("../../kernels/ssm_step_scan.wgsl"),
    params: params_text,
};

fn columns_kernel(dims: &SsmDims, elem: StateElem) -> Specialisation {
    sized(Specialisation::new(&COLUMNS), dims, elem).define("TAPS", dims.taps)
}

fn projected_kernel(
    form: Form,
    dims: &SsmDims,
    elem: StateElem,
    few: Few,
    norm: NormShape,
) -> Specialisation {
    let kernel = Specialisation::new(&PROJECTED).choose("WEIGHT", form.name()).choose("ARENA", "vectors");
    few.define(sized(kernel, dims, elem).define("TAPS", dims.taps), norm)
}

/// States that the scan has in workgroup memory at once: all, where there is room.
fn round(dims: &SsmDims, workgroup_bytes: usize) -> usize {
    // Channels of a chunk and their like, beside the states.
    let bytes = |round: usize| 4 * SSM_CHUNK * (round + 1) + 4 * dims.state + 6144;
    if bytes(dims.state) <= workgroup_bytes { dims.state } else { 64 }
}

fn scan_kernel(dims: &SsmDims, elem: StateElem, gated: bool, round: usize) -> Specialisation {
    sized(Specialisation::new(&SCAN), dims, elem)
        .define("GATED", usize::from(gated))
        .define("ROUND", round)
        .define("B_WORDS", SSM_CHUNK * (round + 1))
}

pub(crate) fn declare() -> Vec<Declaration> {
    let accepts = |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => site.phase != Phase::Prefill && is_scannable(dims, site.caches.state),
        _ => false,
    };
    let sizes = StateElem::ALL.into_iter().flat_map(|elem| [(RELEASED, elem), (ODD, elem)]);
    let kernels = sizes.flat_map(|(dims, elem)| {
        let round = round(&dims, 16 << 10);
        [
            columns_kernel(&dims, elem),
            scan_kernel(&dims, elem, false, round),
            scan_kernel(&dims, elem, true, round),
        ]
    });
    let few = |form: Form| Few::of(form.is_integer(), true, 64, 10304, 15 << 10);
    let norms = [NormShape::NONE, NormShape { groups: 1, size: 2048 }];
    let products = Form::ALL.into_iter().flat_map(|form| {
        norms.map(|norm| projected_kernel(form, &RELEASED, StateElem::F32, few(form), norm))
    });
    let kernels = kernels.chain(products).collect();
    let declaration = Declaration::new(OpKind::SsmStep, "f32", kernels, bind);
    vec![declaration.offering(|row| row.accepting(accepts).rounding(rounds))]
}

/// Which of a call's launches is the first of single rows.
pub(crate) const COLUMNS_AT: usize = 0;

/// Rows of the call's own in working memory.
fn rows(binding: &Binding, cols: usize) -> View {
    let data = binding.scratch(binding.most_rows() * cols);
    View { data, stride: narrow(cols), cols: narrow(cols), rows: binding.output(0).rows }
}

/// Columns of the input projection.
fn columns(x: View, first: usize, cols: usize) -> View {
    View { data: x.data + narrow(first), cols: narrow(cols), ..x }
}

/// What passes between a call's launches, in working memory: convolved columns, dt, outputs before their norm; C.
fn working_rows(binding: &Binding, dims: &SsmDims) -> [View; 4] {
    [dims.conv_dim(), dims.heads, dims.inner(), dims.group_state()].map(|cols| rows(binding, cols))
}

/// Whether a product gives a step its columns, and nothing stands between them.
pub(crate) fn is_projected(product: &Call, step: &Call) -> bool {
    matches!(product.op, Op::Matmul { epilogue: Epilogue::None, .. })
        && matches!(step.op, Op::SsmStep { .. })
        && step.inputs[0] == product.outputs[0]
        && product.outputs[0].rows == Rows::TOKENS
}

/// The product and the first launch of the step after it as one, for a single token; none where they have to run one by one.
pub(crate) fn bind_projected(calls: &mut Calls, product: usize) -> Result<Option<Launch>, BackendError> {
    let workgroup_bytes = calls.around.device.info.workgroup_bytes;
    let binding = calls.of(product + 1)?;
    let Op::SsmStep { dims, .. } = binding.call.op else { binding.wrong_op() };
    let [_, _, _, c] = working_rows(&binding, &dims);
    let (weight, bias) =
        (binding.vector(0, dims.conv_dim() * dims.taps)?, binding.vector(1, dims.conv_dim())?);
    let dt_bias = binding.vector(2, dims.heads)?;
    let pool = binding.slots();
    let (slots, elem, cache) = (SlotView::of(&pool.layout), pool.layout.elem, pool.buffer.clone());
    let binding = calls.of(product)?;
    let cols = binding.call.inputs[0].cols;
    let Op::Matmul { out, .. } = binding.call.op else { binding.wrong_op() };
    let matrix = binding.matrix(0, [1, out, cols])?;
    let [shard] = &matrix.shards[..] else { return Ok(None) };
    let is_integer = matrix.form.is_integer();
    let few = Few::of(is_integer, true, shard.layout.blocks, out, workgroup_bytes - 128);
    let (x, norm, shape) = match binding.norm {
        None => (binding.input(0), None, NormShape::NONE),
        Some(norm) => (norm.x, Some(norm), NormShape { groups: norm.groups, size: cols / norm.groups }),
    };
    let fits = norm.is_none_or(|norm| few.takes_norm(cols, norm.groups, workgroup_bytes - 128));
    if !fits || ![x, binding.output(0), c].into_iter().all(is_aligned) {
        return Ok(None);
    }
    let params = ProjectedParams {
        x,
        out: binding.output(0),
        c,
        weights: shard.weight_rows(1, 0),
        cols: narrow(cols),
        norm: norm.map_or(0, |norm| norm.weight),
        eps: norm.map_or(0.0, |norm| norm.eps),
        weight,
        bias,
        dt_bias,
        slots,
    };
    let workgroups = narrow(out.div_ceil(few.outputs()));
    let kernel = projected_kernel(matrix.form, &dims, elem, few, shape);
    let launch = Launch::new(
        kernel,
        &params,
        move |facts| {
            if facts.tokens == 1 { [workgroups, 1, 1] } else { [0; 3] }
        },
    );
    Ok(Some(launch.reading(&shard.buffer).caching(&cache)))
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmStep { dims, eps } = binding.call.op else { binding.wrong_op() };
    let SsmDims { heads, taps, groups, .. } = dims;
    let (inner, channels) = (dims.inner(), dims.conv_dim());
    let x = binding.input(0);
    let (z, raw) = (columns(x, 0, inner), columns(x, inner, channels));
    let raw_dt = columns(x, inner + channels, heads);
    let [xbc, dt, y, c] = working_rows(binding, &dims);
    let conv = [binding.vector(0, channels * taps)?, binding.vector(1, channels)?];
    let dt_bias = binding.vector(2, heads)?;
    let weights = [binding.vector(3, heads)?, binding.vector(4, heads)?];
    let mut launches =
        single_rows(binding, &dims, [y, c], [conv[0], conv[1], dt_bias, weights[0], weights[1]]);
    let mut general = convolution(binding, &dims, false, [raw, xbc], conv);
    let (kernel, params) = ssm_dt(raw_dt, dt, dt_bias);
    general.push(Launch::by_row(kernel, &params, heads.div_ceil(VALUES), binding.rows()));
    general.extend(scan(binding, &dims, [xbc, dt, y], weights));
    launches.extend(general.into_iter().map(|launch| launch.unless(|facts| facts.has_single_rows)));
    let norm = binding.vector(5, inner)?;
    let is_absorbed = binding.is_absorbed;
    let norm = gated_group_norm(binding, [y, z], norm, inner / groups, eps);
    launches.push(norm.unless(move |facts| is_absorbed && facts.tokens == 1));
    Ok(launches)
}

/// The launches for single rows, with the places of the convolution's weight and bias, dt's bias, a and d. Where the
/// product that follows does the norm, the output is opened by z and left to it.
fn single_rows(
    binding: &Binding,
    dims: &SsmDims,
    [y, c]: [View; 2],
    [weight, bias, dt_bias, a, d]: [u32; 5],
) -> Vec<Launch> {
    let pool = binding.slots();
    let elem = pool.layout.elem;
    let params = StepParams {
        x: binding.input(0),
        c,
        out: y,
        weight,
        bias,
        dt_bias,
        a,
        d,
        slots: SlotView::of(&pool.layout),
    };
    let workgroups = narrow((dims.conv_dim() + dims.heads).div_ceil(VALUES));
    let parts = narrow(head_parts(dims));
    let round = round(dims, binding.workgroup_bytes);
    let is_absorbed = binding.is_absorbed;
    let takes = move |facts: &StepFacts, gated: bool| {
        facts.has_single_rows && gated == (is_absorbed && facts.tokens == 1)
    };
    let by_segment = move |x: u32, facts: &StepFacts| rows_grid(x, facts.segments);
    let columns = Launch::new(columns_kernel(dims, elem), &params, move |facts| {
        if facts.has_single_rows { by_segment(workgroups, facts) } else { [0; 3] }
    });
    let mut launches = vec![columns.caching(&pool.buffer)];
    for gated in [false, true].into_iter().filter(|gated| !gated || is_absorbed) {
        let out = if gated { binding.output(0) } else { y };
        let scan =
            Launch::new(scan_kernel(dims, elem, gated, round), &StepParams { out, ..params }, move |facts| {
                if takes(facts, gated) { by_segment(parts, facts) } else { [0; 3] }
            });
        launches.push(scan.caching(&pool.buffer));
    }
    launches
}
