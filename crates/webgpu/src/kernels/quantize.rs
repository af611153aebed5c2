//! `quantize`: rows as products with integer weights read them; and the same as a second output of other ops.

use mambo_kernel::{BackendError, Elem, Op, OpKind, Site};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::matmul::is_aligned;
use super::pointwise::{VALUES, source};
use crate::activation::I8;
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};
use crate::stored::BLOCK;

params! {
    struct QuantizeParams { x: View, out: View }
}

source!(SOURCE, "quantize", QuantizeParams);

fn kernel(is_aligned: bool) -> Specialisation {
    Specialisation::new(&SOURCE).choose("ARENA", if is_aligned { "vectors" } else { "words" })
}

pub(crate) fn declare() -> Vec<Declaration> {
    let accepts = |site: &Site| *site.op == Op::Quantize(I8);
    let kernels = [true, false].map(kernel).to_vec();
    let declaration = Declaration::new(OpKind::Quantize, I8.name(), kernels, bind);
    vec![declaration.offering(|row| row.accepting(accepts))]
}

/// Whether an op may give its first output rounded, too.
pub(super) fn rounds(_: &Site, elem: Elem) -> bool {
    elem == I8
}

fn launch(binding: &Binding, x: View, out: View) -> Launch {
    let workgroups = (x.cols as usize).div_ceil(BLOCK).div_ceil(VALUES);
    let kernel = kernel(is_aligned(x) && is_aligned(out));
    Launch::by_row(kernel, &QuantizeParams { x, out }, workgroups, binding.rows())
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    Ok(vec![launch(binding, binding.input(0), binding.output(0))])
}

/// Rounds a call's first output, where it is to, unless those that read it do so.
pub(crate) fn rounding(binding: &Binding) -> Option<Launch> {
    let rounded = binding.rounded()?;
    let (rows, is_absorbed) = (binding.rows(), binding.is_absorbed);
    let launch = launch(binding, binding.output(0), rounded);
    Some(launch.unless(move |facts| is_absorbed && facts.rows(rows) == 1))
}
