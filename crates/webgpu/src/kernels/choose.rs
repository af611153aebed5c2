//! `choose`: the best token of every slice of a row, then the row's token.

use mambo_kernel::{BackendError, OpKind};

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::Declaration;
use super::pointwise::source;
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct ChooseParams { logits: View, out: View, slices: u32 }
}

source!(BEST, "choose_best", ChooseParams);
source!(SOURCE, "choose", ChooseParams);

/// Slices of a row that are searched side by side (`SLICES` in choice.wgsl).
const SLICES: usize = 32;

pub(crate) fn declare() -> Vec<Declaration> {
    let kernels = [&BEST, &SOURCE].map(Specialisation::new).to_vec();
    vec![Declaration::new(OpKind::Choose, "f32", kernels, bind)]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let slices = binding.scratch(2 * SLICES * binding.most_rows());
    let params = ChooseParams { logits: binding.input(0), out: binding.output(0), slices };
    let rows = binding.rows();
    Ok(vec![
        Launch::new(Specialisation::new(&BEST), &params, move |facts| {
            rows_grid(SLICES as u32, facts.rows(rows))
        }),
        Launch::by_row(Specialisation::new(&SOURCE), &params, 1, rows),
    ])
}
