//! `matmul` and `moe_matmul`: a row for every type that is held in its own bits, and one for those that are decoded.

use mambo_kernel::{BackendError, Epilogue, KernelRow, Op, OpKind, Rows, Site};
use mambo_tensor::DType;

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::{Bind, Declaration, PACKED};
use super::pointwise::source;
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};
use crate::stored::{Form, arithmetic, held};
use crate::weights::{Matrix, Shard};

params! {
    struct MatmulParams {
        x: View,
        ids: View,
        residual: View,
        out: View,
        cols: u32,
        blocks: u32,
        /// Outputs of the shard (of each expert), the first of them, its experts and the first of those.
        outputs: u32,
        first: u32,
        experts: u32,
        first_expert: u32,
        scales: u32,
        scale_words: u32,
        supers: u32,
        super_words: u32,
        factors: u32,
        top_k: u32,
        /// Whether x has a row for every pair, and not for every token.
        x_per_pair: u32,
        /// Whether pairs are sorted, and where: tiles, and pairs in order.
        sorted: u32,
        tiles: u32,
        order: u32,
    }
    struct MoeSortParams { ids: View, top_k: u32, experts: u32, tiles: u32, order: u32 }
}

source!(SOURCE, "matmul", MatmulParams);
source!(SORT, "moe_sort", MoeSortParams);

/// Outputs and rows of a workgroup (`OUTPUTS` and `TILE_ROWS` in matmul.wgsl).
const OUTPUTS: usize = 16;
const TILE_ROWS: usize = 8;
/// Tokens up to which pairs are not sorted: hardly two have the same expert.
const UNSORTED_TOKENS: usize = 4;
/// Experts that sorting counts in a workgroup's memory.
const MOST_EXPERTS: usize = 1024;

fn kernel(form: Form, has_experts: bool, epilogue: Epilogue) -> Specialisation {
    let epilogue = match epilogue {
        Epilogue::Relu2 => 1,
        Epilogue::Residual => 2,
        _ => 0,
    };
    let kernel = Specialisation::new(&SOURCE).choose("WEIGHT", form.name());
    kernel.define("EXPERTS", usize::from(has_experts)).define("EPILOGUE", epilogue)
}

fn sort_kernel(experts: usize) -> Specialisation {
    Specialisation::new(&SORT).define("MAX_EXPERTS", experts)
}

/// One row of a product, for the types that `accepts` takes.
fn declare_row(
    op: OpKind,
    types: &str,
    example: DType,
    accepts: impl Fn(DType) -> bool + Send + Sync + 'static,
    bind: Bind,
) -> Declaration {
    let has_experts = op == OpKind::MoeMatmul;
    // A second weight is a gate, which is multiplied by a call of its own.
    let is_for = move |site: &Site| {
        let fits = match site.op {
            Op::MoeMatmul { experts, .. } => *experts <= MOST_EXPERTS,
            _ => true,
        };
        fits && matches!(site.weight_types, [dtype] if accepts(*dtype))
    };
    let form = held(example).expect("listed types are held");
    let epilogues = [Epilogue::None, Epilogue::Relu2, Epilogue::Residual];
    let used = if has_experts { &epilogues[..2] } else { &epilogues[..] };
    let mut kernels: Vec<_> = used.iter().map(|epilogue| kernel(form, has_experts, *epilogue)).collect();
    if has_experts {
        kernels.push(sort_kernel(128));
    }
    let change = |row: KernelRow| row.computing(arithmetic(example)).holding(PACKED).accepting(is_for);
    Declaration::new(op, types, kernels, bind).offering(change)
}

fn declare_products(op: OpKind, bind: Bind) -> impl Iterator<Item = Declaration> {
    let own = Form::ALL.into_iter().map(move |form| {
        declare_row(op, form.name(), form.dtype(), move |dtype| dtype == form.dtype(), bind)
    });
    let is_decoded = |dtype| held(dtype).is_some_and(|form| form.dtype() != dtype);
    own.chain([declare_row(op, "decoded_to_f16", DType::Q2K, is_decoded, bind)])
}

pub(crate) fn declare() -> Vec<Declaration> {
    let all = declare_products(OpKind::Matmul, bind_matmul);
    all.chain(declare_products(OpKind::MoeMatmul, bind_moe_matmul)).collect()
}

/// The parameters of a shard, as of a plain product.
fn shard_params(binding: &Binding, matrix: &Matrix, shard: &Shard) -> MatmulParams {
    let [experts, outputs, cols] = matrix.dims;
    let (rows, layout) = (&shard.rows, shard.layout);
    // A shard has whole experts, or some outputs of the only one.
    let [first_expert, experts, first, outputs] = match experts {
        1 => [0, 1, rows.start, rows.len()],
        _ => [rows.start / outputs, rows.len() / outputs, 0, outputs],
    };
    MatmulParams {
        x: binding.input(0),
        ids: View::default(),
        residual: View::default(),
        out: binding.output(0),
        cols: narrow(cols),
        blocks: narrow(layout.blocks),
        outputs: narrow(outputs),
        first: narrow(first),
        experts: narrow(experts),
        first_expert: narrow(first_expert),
        scales: narrow(layout.scales),
        scale_words: narrow(layout.scale_words),
        supers: narrow(layout.supers),
        super_words: narrow(layout.super_words),
        factors: narrow(layout.factors),
        top_k: 1,
        x_per_pair: 0,
        sorted: 0,
        tiles: 0,
        order: 0,
    }
}

fn bind_matmul(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Matmul { out, epilogue } = binding.call.op else { binding.wrong_op() };
    let matrix = binding.matrix(0, [1, out, binding.call.inputs[0].cols])?;
    let rows = binding.rows();
    let launch = |shard: &Shard| {
        let params =
            MatmulParams { residual: binding.optional_input(1), ..shard_params(binding, matrix, shard) };
        let x = params.outputs.div_ceil(OUTPUTS as u32);
        let grid =
            move |facts: &super::binding::StepFacts| rows_grid(x, facts.rows(rows).div_ceil(TILE_ROWS));
        Launch::new(kernel(matrix.form, false, epilogue), &params, grid).reading(&shard.buffer)
    };
    Ok(matrix.shards.iter().map(launch).collect())
}

fn bind_moe_matmul(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeMatmul { experts, top_k, out, epilogue } = binding.call.op else { binding.wrong_op() };
    let matrix = binding.matrix(0, [experts, out, binding.call.inputs[0].cols])?;
    let pairs = binding.max_tokens * top_k;
    let most_tiles = pairs / TILE_ROWS + experts.min(pairs);
    let tiles = binding.scratch(4 + 4 * most_tiles);
    let order = binding.scratch(pairs);
    let ids = binding.input(1);
    let sort = MoeSortParams { ids, top_k: narrow(top_k), experts: narrow(experts), tiles, order };
    let is_sorted = |tokens: usize| tokens > UNSORTED_TOKENS;
    let mut launches = vec![Launch::new(sort_kernel(experts), &sort, move |facts| {
        [u32::from(is_sorted(facts.tokens)), 1, 1]
    })];
    for shard in &matrix.shards {
        let unsorted = MatmulParams {
            ids,
            top_k: narrow(top_k),
            x_per_pair: u32::from(binding.call.inputs[0].rows != Rows::TOKENS),
            tiles,
            order,
            ..shard_params(binding, matrix, shard)
        };
        let sorted = MatmulParams { sorted: 1, ..unsorted };
        let x = unsorted.outputs.div_ceil(OUTPUTS as u32);
        launches.push(Launch {
            kernel: kernel(matrix.form, true, epilogue),
            params: vec![unsorted.words(), sorted.words()],
            matrix: Some(shard.buffer.clone()),
            cache: None,
            then: None,
            dispatch: Box::new(move |facts, dispatch| {
                let pairs = facts.tokens * top_k;
                match is_sorted(facts.tokens) {
                    false => dispatch(0, rows_grid(x, pairs)),
                    true => dispatch(1, rows_grid(x, pairs / TILE_ROWS + experts.min(pairs))),
                }
            }),
        });
    }
    Ok(launches)
}
