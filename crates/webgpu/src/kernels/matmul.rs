//! `matmul` and `moe_matmul`: a row for every type that is held in its own bits, and one for those that are decoded.

use mambo_kernel::{BackendError, Elem, Epilogue, KernelRow, Op, OpKind, Rows, Site};
use mambo_tensor::DType;

use super::binding::{Binding, Launch, rows_grid};
use super::declaration::{Bind, Declaration, PACKED};
use super::few::{Few, NormShape};
use super::pointwise::source;
use super::quantize::rounds;
use crate::activation::I8;
use crate::params::{Params, View, WeightRows, narrow, params};
use crate::source::{Source, Specialisation};
use crate::stored::{Form, arithmetic, held};
use crate::weights::{Matrix, Shard};

params! {
    struct MatmulParams {
        x: View,
        ids: View,
        residual: View,
        out: View,
        weights: WeightRows,
        cols: u32,
        /// The first output of the shard, and its first expert.
        first: u32,
        first_expert: u32,
        top_k: u32,
        /// Whether x has a row for every pair, and not for every token.
        x_per_pair: u32,
        /// Whether pairs are sorted, and where: tiles, and pairs in order.
        sorted: u32,
        tiles: u32,
        order: u32,
        /// Weights of the norm of x among the vectors, and what is added to the mean.
        norm: u32,
        eps: f32,
    }
    struct MoeSortParams { ids: View, top_k: u32, experts: u32, tiles: u32, order: u32 }
}

source!(FEW, "matmul", MatmulParams);
source!(MANY, "matmul_tile", MatmulParams);
source!(MANY_INTEGERS, "matmul_tile_i8", MatmulParams);
source!(SORT, "moe_sort", MoeSortParams);

/// Outputs of a workgroup for many rows (`OUTPUTS` in matmul_tile.wgsl).
const TILE_OUTPUTS: usize = 128;
/// Rows of a tile for many rows, and with experts, which have fewer each.
const TILE_ROWS: usize = 64;
const EXPERT_TILE_ROWS: usize = 32;
/// Rows up to which they are few: beyond, reading weights again for each tile costs more than idle rows of a large one,
/// unless there are so few outputs that large tiles would leave most of the device idle.
const FEW_ROWS: usize = 16;
const NARROW_OUTPUTS: usize = 256;
const NARROW_ROWS: usize = 2048;
/// Tokens up to which pairs are not sorted: hardly two have the same expert.
const UNSORTED_TOKENS: usize = 8;
/// Tokens up to which an expert has few of them.
const FEW_TOKENS: usize = 128;
/// Experts that sorting counts in a workgroup's memory.
const MOST_EXPERTS: usize = 1024;

/// How a product is computed; a value has the same bits in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Few(Few),
    /// Tiles of so many rows.
    Many {
        rows: usize,
    },
}

impl Shape {
    fn rows(self) -> usize {
        match self {
            Shape::Few(Few { rows, .. }) | Shape::Many { rows } => rows,
        }
    }

    /// Outputs of a workgroup.
    fn outputs(self) -> usize {
        match self {
            Shape::Few(few) => few.outputs(),
            Shape::Many { .. } => TILE_OUTPUTS,
        }
    }
}

/// A product's kernel but for its shape.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    form: Form,
    has_experts: bool,
    epilogue: Epilogue,
    /// Whether all operands stand on multiples of four words.
    is_aligned: bool,
    /// The norm that a single row needs first.
    norm: NormShape,
}

impl Kernel {
    const PLAIN: Kernel = Kernel {
        form: Form::F32,
        has_experts: false,
        epilogue: Epilogue::None,
        is_aligned: false,
        norm: NormShape::NONE,
    };

    fn of(self, shape: Shape) -> Specialisation {
        let epilogue = match self.epilogue {
            Epilogue::Relu2 => 1,
            Epilogue::Residual => 2,
            _ => 0,
        };
        let source = match shape {
            Shape::Few(_) => &FEW,
            Shape::Many { .. } if self.form.is_integer() => &MANY_INTEGERS,
            Shape::Many { .. } => &MANY,
        };
        let kernel = Specialisation::new(source)
            .choose("WEIGHT", self.form.name())
            .choose("ARENA", if self.is_aligned { "vectors" } else { "words" })
            .define("EXPERTS", usize::from(self.has_experts))
            .define("EPILOGUE", epilogue);
        match shape {
            Shape::Few(few) => few.define(kernel, self.norm),
            Shape::Many { rows } => {
                // Sixteen columns of floats, or eight words of a block's codes.
                let vectors = if self.form.is_integer() { 2 * rows } else { 4 * rows };
                kernel.define("TILE_ROWS", rows).define("X_VECTORS", vectors)
            }
        }
    }

    /// All that tests validate.
    fn all(self) -> impl Iterator<Item = Specialisation> {
        let few = [[true, false], [true, true], [false, false]]
            .map(|[single, is_short]| (single, if is_short { 16 } else { 4096 }))
            .map(|(single, outputs)| Few::of(self.form.is_integer(), single, 84, outputs, 16 << 10));
        let many = if self.has_experts { EXPERT_TILE_ROWS } else { TILE_ROWS };
        let shapes = few.into_iter().map(Shape::Few).chain([Shape::Many { rows: many }]);
        let forms = [true, false].map(|is_aligned| Kernel { is_aligned, ..self });
        shapes.flat_map(move |shape| forms.map(|kernel| kernel.of(shape)))
    }
}

fn sort_kernel(experts: usize, tile_rows: usize) -> Specialisation {
    Specialisation::new(&SORT).define("MAX_EXPERTS", experts).define("TILE_ROWS", tile_rows)
}

/// What another product reads next is rounded here.
fn rounds_squares(site: &Site, elem: Elem) -> bool {
    let epilogue = match site.op {
        Op::Matmul { epilogue, .. } | Op::MoeMatmul { epilogue, .. } => *epilogue,
        _ => Epilogue::None,
    };
    epilogue == Epilogue::Relu2 && rounds(site, elem)
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
    let kernel = |epilogue: &Epilogue| Kernel {
        form,
        has_experts,
        epilogue: *epilogue,
        is_aligned: true,
        norm: NormShape::NONE,
    };
    let mut kernels: Vec<_> = used.iter().flat_map(|epilogue| kernel(epilogue).all()).collect();
    if has_experts {
        kernels.push(sort_kernel(128, EXPERT_TILE_ROWS));
    }
    let is_integer = form.is_integer();
    let change = |row: KernelRow| {
        let row = row.computing(arithmetic(example)).holding(PACKED).accepting(is_for);
        if is_integer { row.reading(I8).rounding(rounds_squares) } else { row }
    };
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
    // A shard has whole experts, or some outputs of the only one.
    let [first_expert, first] = match experts {
        1 => [0, shard.rows.start],
        _ => [shard.rows.start / outputs, 0],
    };
    MatmulParams {
        x: binding.input(0),
        ids: View::default(),
        residual: View::default(),
        out: binding.output(0),
        weights: shard.weight_rows(experts, outputs),
        cols: narrow(cols),
        first: narrow(first),
        first_expert: narrow(first_expert),
        top_k: 1,
        x_per_pair: 0,
        sorted: 0,
        tiles: 0,
        order: 0,
        norm: 0,
        eps: 0.0,
    }
}

/// Whether kernels may see an operand as vectors of four words.
pub(super) fn is_aligned(view: View) -> bool {
    view.data.is_multiple_of(4) && view.stride.is_multiple_of(4)
}

impl MatmulParams {
    fn is_aligned(&self) -> bool {
        let first_fits = self.first.is_multiple_of(4) || self.weights.experts > 1;
        [self.x, self.residual, self.out].into_iter().all(is_aligned) && first_fits
    }
}

/// A product that does the norm of its x itself, if it has to and the row is alone.
fn normed(
    binding: &Binding,
    is_single: bool,
    kernel: Kernel,
    params: MatmulParams,
) -> (Kernel, MatmulParams) {
    let Some(norm) = binding.norm.filter(|_| is_single) else { return (kernel, params) };
    let shape = NormShape { groups: norm.groups, size: params.cols as usize / norm.groups };
    let params = MatmulParams { x: norm.x, norm: norm.weight, eps: norm.eps, ..params };
    (Kernel { norm: shape, ..kernel }, params)
}

/// How many of something there are in a step.
type Count = Box<dyn Fn(&super::binding::StepFacts) -> usize + Send + Sync>;

/// A launch of one shape, of so many tiles of rows; none where there are no tiles.
fn shaped(kernel: Kernel, shape: Shape, shard: &Shard, params: &MatmulParams, tiles: Count) -> Launch {
    let x = params.weights.outputs.div_ceil(narrow(shape.outputs()));
    let kernel = Kernel { is_aligned: params.is_aligned(), ..kernel }.of(shape);
    Launch::new(kernel, params, move |facts| rows_grid(x, tiles(facts))).reading(&shard.buffer)
}

fn bind_matmul(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::Matmul { out, epilogue } = binding.call.op else { binding.wrong_op() };
    let matrix = binding.matrix(0, [1, out, binding.call.inputs[0].cols])?;
    let kernel = Kernel { form: matrix.form, has_experts: false, epilogue, ..Kernel::PLAIN };
    let (rows, most) = (binding.rows(), binding.most_rows());
    let mut launches = Vec::new();
    for shard in &matrix.shards {
        let params =
            MatmulParams { residual: binding.optional_input(1), ..shard_params(binding, matrix, shard) };
        let (blocks, outputs) = (params.weights.blocks as usize, params.weights.outputs as usize);
        let few = |single| {
            Shape::Few(Few::of(matrix.form.is_integer(), single, blocks, outputs, binding.workgroup_bytes))
        };
        let most_few = if outputs <= NARROW_OUTPUTS { NARROW_ROWS } else { FEW_ROWS };
        let ranges = [
            (1..2, few(true)),
            (2..most_few + 1, few(false)),
            (most_few + 1..usize::MAX, Shape::Many { rows: TILE_ROWS }),
        ];
        for (range, shape) in ranges.into_iter().filter(|(range, _)| range.start <= most) {
            let is_single = range.end == 2;
            let tiles: Count = Box::new(move |facts| {
                let rows = facts.rows(rows);
                if range.contains(&rows) { rows.div_ceil(shape.rows()) } else { 0 }
            });
            let (kernel, params) = normed(binding, is_single, kernel, params);
            launches.push(shaped(kernel, shape, shard, &params, tiles));
        }
    }
    Ok(launches)
}

fn bind_moe_matmul(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeMatmul { experts, top_k, out, epilogue } = binding.call.op else { binding.wrong_op() };
    let matrix = binding.matrix(0, [experts, out, binding.call.inputs[0].cols])?;
    let kernel = Kernel { form: matrix.form, has_experts: true, epilogue, ..Kernel::PLAIN };
    let pairs = binding.max_tokens * top_k;
    let tiles_of = move |pairs: usize, rows: usize| pairs / rows + experts.min(pairs);
    let blocks = matrix.shards[0].layout.blocks;
    let few =
        |single| Shape::Few(Few::of(matrix.form.is_integer(), single, blocks, out, binding.workgroup_bytes));
    // Pairs alone, at first of one token; sorted, few of each expert; sorted, many.
    let ranges = [
        (1..2, few(true)),
        (2..UNSORTED_TOKENS + 1, few(true)),
        (UNSORTED_TOKENS + 1..FEW_TOKENS + 1, few(false)),
        (FEW_TOKENS + 1..usize::MAX, Shape::Many { rows: EXPERT_TILE_ROWS }),
    ];
    let ranges: Vec<_> = ranges.into_iter().filter(|(range, _)| range.start <= binding.max_tokens).collect();
    let most_tiles = tiles_of(pairs, 2);
    let (tiles, order) = (binding.scratch(4 + 4 * most_tiles), binding.scratch(pairs));
    let ids = binding.input(1);
    let sort = MoeSortParams { ids, top_k: narrow(top_k), experts: narrow(experts), tiles, order };
    let mut launches = Vec::new();
    for (range, shape) in ranges {
        let is_sorted = range.start > 2;
        if is_sorted {
            let kernel = sort_kernel(experts, shape.rows());
            let range = range.clone();
            launches.push(Launch::new(kernel, &sort, move |facts| {
                [u32::from(range.contains(&facts.tokens)), 1, 1]
            }));
        }
        for shard in &matrix.shards {
            let params = MatmulParams {
                ids,
                top_k: narrow(top_k),
                x_per_pair: u32::from(binding.call.inputs[0].rows != Rows::TOKENS),
                sorted: u32::from(is_sorted),
                tiles,
                order,
                ..shard_params(binding, matrix, shard)
            };
            let (range, is_single) = (range.clone(), range.end == 2);
            let tiles: Count = Box::new(move |facts| {
                let pairs = facts.tokens * top_k;
                match (range.contains(&facts.tokens), is_sorted) {
                    (false, _) => 0,
                    (true, false) => pairs,
                    (true, true) => tiles_of(pairs, shape.rows()),
                }
            });
            let (kernel, params) = normed(binding, is_single, kernel, params);
            launches.push(shaped(kernel, shape, shard, &params, tiles));
        }
    }
    Ok(launches)
}
