//! `ssm_step`: the launches of the four ops it stands for, with what passes between them in working memory. The same
//! kernels give the same bits.

use mambo_kernel::{BackendError, Op, OpKind, Phase, Site, SsmDims};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::norm::gated_group_norm;
use super::pointwise::{VALUES, ssm_dt};
use super::slot::is_scannable;
use super::ssm_conv::convolution;
use super::ssm_scan::scan;
use crate::params::{View, narrow};

pub(crate) fn declare() -> Vec<Declaration> {
    let accepts = |site: &Site| match site.op {
        Op::SsmStep { dims, .. } => site.phase != Phase::Prefill && is_scannable(dims, site.caches.state),
        _ => false,
    };
    let declaration = Declaration::new(OpKind::SsmStep, "f32", Vec::new(), bind);
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
    let mut launches = convolution(binding, &dims, false, [raw, xbc], conv);
    let (kernel, params) = ssm_dt(raw_dt, dt, binding.vector(2, heads)?);
    launches.push(Launch::by_row(kernel, &params, heads.div_ceil(VALUES), binding.rows()));
    let weights = [binding.vector(3, heads)?, binding.vector(4, heads)?];
    launches.extend(scan(binding, &dims, [xbc, dt, y], weights));
    let norm = binding.vector(5, inner)?;
    launches.push(gated_group_norm(binding, [y, z], norm, inner / groups, eps));
    Ok(launches)
}
