//! `ssm_step`: two launches where every sequence has one row; else those of the four ops it stands for, with what passes
//! between them in working memory. Both give the same bits.

use mambo_kernel::{BackendError, Op, OpKind, Phase, Site, SsmDims, StateElem};

use super::binding::{Binding, Launch, StepFacts, rows_grid};
use super::declaration::Declaration;
use super::norm::gated_group_norm;
use super::pointwise::{VALUES, ssm_dt};
use super::slot::{ODD, RELEASED, SlotView, flatten, head_parts, is_scannable, sized};
use super::ssm_conv::convolution;
use super::ssm_scan::scan;
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

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
}

fn params_text() -> String {
    flatten(&StepParams::wgsl())
}

static COLUMNS: Source = Source {
    stem: "ssm_step_columns",
    text: include_str!("../../kernels/ssm_step_columns.wgsl"),
    params: params_text,
};
static SCAN: Source = Source {
    stem: "ssm_step_scan",
    text: include_str!("../../kernels/ssm_step_scan.wgsl"),
    params: params_text,
};

fn columns_kernel(dims: &SsmDims, elem: StateElem) -> Specialisation {
    sized(Specialisation::new(&COLUMNS), dims, elem).define("TAPS", dims.taps)
}

fn scan_kernel(dims: &SsmDims, elem: StateElem, gated: bool) -> Specialisation {
    sized(Specialisation::new(&SCAN), dims, elem).define("GATED", usize::from(gated))
}

pub(crate) fn declare() -> Vec<Declaration> {
    let accepts = |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => site.phase != Phase::Prefill && is_scannable(dims, site.caches.state),
        _ => false,
    };
    let sizes = StateElem::ALL.into_iter().flat_map(|elem| [(RELEASED, elem), (ODD, elem)]);
    let kernels = sizes.flat_map(|(dims, elem)| {
        [columns_kernel(&dims, elem), scan_kernel(&dims, elem, false), scan_kernel(&dims, elem, true)]
    });
    let declaration = Declaration::new(OpKind::SsmStep, "f32", kernels.collect(), bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

/// Rows of the call's own in working memory.
fn rows(binding: &Binding, cols: usize) -> View {
    let data = binding.scratch(binding.most_rows() * cols);
    View { data, stride: narrow(cols), cols: narrow(cols), rows: binding.output(0).rows }
}

/// Columns of the input projection.
fn columns(x: View, first: usize, cols: usize) -> View {
    View { data: x.data + narrow(first), cols: narrow(cols), ..x }
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::SsmStep { dims, eps } = binding.call.op else { binding.wrong_op() };
    let SsmDims { heads, taps, groups, .. } = dims;
    let (inner, channels) = (dims.inner(), dims.conv_dim());
    let x = binding.input(0);
    let (z, raw) = (columns(x, 0, inner), columns(x, inner, channels));
    let raw_dt = columns(x, inner + channels, heads);
    let (xbc, dt, y) = (rows(binding, channels), rows(binding, heads), rows(binding, inner));
    let conv = [binding.vector(0, channels * taps)?, binding.vector(1, channels)?];
    let dt_bias = binding.vector(2, heads)?;
    let weights = [binding.vector(3, heads)?, binding.vector(4, heads)?];
    let mut launches = single_rows(binding, &dims, y, [conv[0], conv[1], dt_bias, weights[0], weights[1]]);
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
    y: View,
    [weight, bias, dt_bias, a, d]: [u32; 5],
) -> Vec<Launch> {
    let pool = binding.slots();
    let elem = pool.layout.elem;
    let c = rows(binding, dims.group_state());
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
        let scan = Launch::new(scan_kernel(dims, elem, gated), &StepParams { out, ..params }, move |facts| {
            if takes(facts, gated) { by_segment(parts, facts) } else { [0; 3] }
        });
        launches.push(scan.caching(&pool.buffer));
    }
    launches
}
