//! Products of the same row, such as queries, keys and values, as one launch for a single token, with the norm of the row.
//! The bits are those of the calls.

use mambo_kernel::{BackendError, Epilogue, Op, Rows};

use super::binding::{Launch, StepFacts};
use super::few::{Few, NormShape, takes_norm};
use super::matmul::is_aligned;
use super::pointwise::source;
use crate::params::{Params, View, WeightRows, narrow, params};
use crate::program::Calls;
use crate::source::{Source, Specialisation};
use crate::stored::Form;

params! {
    struct SeveralParams {
        x: View,
        first_out: View,
        second_out: View,
        third_out: View,
        first_weights: WeightRows,
        second_weights: WeightRows,
        third_weights: WeightRows,
        first_tiles: u32,
        second_tiles: u32,
        cols: u32,
        norm: u32,
        eps: f32,
    }
}

source!(SOURCE, "matmul_several", SeveralParams);

/// The most products.
pub(crate) const MOST: usize = 3;

fn kernel(form: Form, few: Few, norm: NormShape) -> Specialisation {
    few.define(Specialisation::new(&SOURCE).choose("WEIGHT", form.name()).choose("ARENA", "vectors"), norm)
}

/// Everything that tests validate.
pub(crate) fn specialisations() -> Vec<Specialisation> {
    let few = |form: Form| Few::of(form.is_integer(), true, 64, 4096, 16 << 10);
    let norm = NormShape { groups: 1, size: 2048 };
    Form::ALL.into_iter().map(|form| kernel(form, few(form), norm)).collect()
}

/// One launch for products of a single row, all with the norm of it; none where they have to run one by one.
pub(crate) fn bind(calls: &mut Calls, products: &[usize]) -> Result<Option<Launch>, BackendError> {
    let workgroup_bytes = calls.around.device.info.workgroup_bytes;
    let (mut outs, mut weights) = ([View::default(); MOST], [WeightRows::default(); MOST]);
    let mut common: Option<(Form, wgpu::Buffer)> = None;
    let mut found = None;
    for (index, &product) in products.iter().enumerate() {
        let binding = calls.of(product)?;
        let Op::Matmul { out, epilogue: Epilogue::None } = binding.call.op else { return Ok(None) };
        let (cols, rows) = (binding.call.inputs[0].cols, binding.rows());
        let matrix = binding.matrix(0, [1, out, cols])?;
        let (Some(norm), [shard]) = (binding.norm, &matrix.shards[..]) else { return Ok(None) };
        let own = (matrix.form, shard.buffer.clone());
        let is_first = common.get_or_insert_with(|| own.clone()) == &own;
        let fits = takes_norm(matrix.form.is_integer(), [cols, out], 1, workgroup_bytes);
        if !is_first || norm.groups != 1 || rows != Rows::TOKENS || !fits {
            return Ok(None);
        }
        outs[index] = binding.output(0);
        weights[index] = shard.weight_rows(1, 0);
        found = Some((norm, cols));
    }
    let (Some((norm, cols)), Some((form, buffer))) = (found, common) else { return Ok(None) };
    if !outs.iter().chain([&norm.x]).all(|view| is_aligned(*view)) {
        return Ok(None);
    }
    let [blocks, outputs] = [weights[0].blocks, weights[0].outputs].map(|n| n as usize);
    let few = Few::of(form.is_integer(), true, blocks, outputs, workgroup_bytes);
    let tiles = weights.map(|weights| weights.outputs.div_ceil(narrow(few.outputs())));
    let params = SeveralParams {
        x: norm.x,
        first_out: outs[0],
        second_out: outs[1],
        third_out: outs[2],
        first_weights: weights[0],
        second_weights: weights[1],
        third_weights: weights[2],
        first_tiles: tiles[0],
        second_tiles: tiles[1],
        cols: narrow(cols),
        norm: norm.weight,
        eps: norm.eps,
    };
    let kernel = kernel(form, few, NormShape { groups: 1, size: cols });
    let x = tiles.iter().sum();
    let grid = move |facts: &StepFacts| if facts.tokens == 1 { [x, 1, 1] } else { [0; 3] };
    Ok(Some(Launch::new(kernel, &params, grid).reading(&buffer)))
}
