//! `embed`.

use mambo_kernel::{BackendError, OpKind, Site};

use super::binding::{Binding, Launch};
use super::declaration::{Declaration, TABLE};
use super::pointwise::{VALUES, source};
use crate::params::{Params, View, WeightRows, narrow, params};
use crate::source::{Source, Specialisation};
use crate::stored::{Form, held_as_table};

params! {
    struct EmbedParams {
        out: View,
        weights: WeightRows,
        /// The first row of the shard.
        first: u32,
    }
}

source!(SOURCE, "embed", EmbedParams);

fn kernel(form: Form) -> Specialisation {
    Specialisation::new(&SOURCE).choose("WEIGHT", form.name())
}

pub(crate) fn declare() -> Vec<Declaration> {
    let accepts = |site: &Site| matches!(site.weight_types, [dtype] if held_as_table(*dtype).is_some());
    let declaration = Declaration::new(OpKind::Embed, "f32", Form::ALL.map(kernel).to_vec(), bind);
    vec![declaration.offering(|row| row.holding(TABLE).accepting(accepts))]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let out = binding.output(0);
    let table = binding.matrix(0, [1, 0, out.cols as usize])?;
    let workgroups = (out.cols as usize).div_ceil(4 * VALUES);
    let launch = |shard: &crate::weights::Shard| {
        let weights = shard.weight_rows(1, 0);
        let params = EmbedParams { out, weights, first: narrow(shard.rows.start) };
        Launch::by_row(kernel(table.form), &params, workgroups, binding.rows()).reading(&shard.buffer)
    };
    Ok(table.shards.iter().map(launch).collect())
}
