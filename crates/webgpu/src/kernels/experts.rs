//! A layer of experts with one that is always chosen, as two launches after the router's scores, for steps of few tokens. The
//! bits are those of the calls.

use mambo_kernel::{BackendError, Call, Epilogue, Op, RouteDims, RowBase, Scoring};

use super::binding::{Binding, Launch, Norm, rows_grid};
use super::few::{Few, NormShape};
use super::matmul::is_aligned;
use super::pointwise::source;
use crate::activation::BLOCK_WORDS;
use crate::params::{Params, View, WeightRows, narrow, params};
use crate::program::Calls;
use crate::source::{Source, Specialisation};
use crate::stored::{BLOCK, Form};

params! {
    struct UpParams {
        x: View,
        logits: View,
        ids: View,
        weights: View,
        experts: WeightRows,
        shared_expert: WeightRows,
        cols: u32,
        norm: u32,
        eps: f32,
        bias: u32,
        scale: f32,
        /// Values between the products, and copies of ids and weights.
        hidden: u32,
        hidden_words: u32,
        choices: u32,
    }
    struct DownParams {
        residual: View,
        out: View,
        experts: WeightRows,
        shared_expert: WeightRows,
        hidden: u32,
        hidden_words: u32,
        choices: u32,
    }
}

source!(UP, "experts_up", UpParams);
source!(DOWN, "experts_down_f32", DownParams);
source!(DOWN_INTEGERS, "experts_down_i8", DownParams);

/// The calls of a layer, one after the other.
pub(crate) const CALLS: usize = 8;
const ROUTER: usize = 1;
const ROUTE: usize = 2;
const EXPERTS_UP: usize = 3;
const EXPERTS_DOWN: usize = 4;
const COMBINE: usize = 5;
const SHARED_UP: usize = 6;
const SHARED_DOWN: usize = 7;

/// Calls whose own launches are left out, and outputs of theirs that nothing else may read.
pub(crate) const REPLACED: [usize; 6] = [ROUTE, EXPERTS_UP, EXPERTS_DOWN, COMBINE, SHARED_UP, SHARED_DOWN];
pub(crate) const HIDDEN: [usize; 4] = [EXPERTS_UP, EXPERTS_DOWN, COMBINE, SHARED_UP];
/// Where the two launches stand.
pub(crate) const UP_AT: usize = ROUTE;
pub(crate) const DOWN_AT: usize = SHARED_DOWN;
/// Tokens up to which a step runs so. Every row reads the constant expert again, and every workgroup of a row chooses again:
/// with eight, steps were slower than in single dispatches (docs/gpu.md). Where in between the limit lies is not measured.
pub(crate) const MOST_TOKENS: usize = 4;

/// Experts that every workgroup chooses among.
const MOST_EXPERTS: usize = 256;

/// Words of a block of what passes between the launches.
fn hidden_block_words(form: Form) -> usize {
    if form.is_integer() { BLOCK_WORDS } else { BLOCK }
}

/// How the first launch is cut: with rounded values between them, workgroups have whole blocks.
fn up_few(form: Form, [blocks, outputs]: [usize; 2], room: usize) -> Few {
    match form.is_integer() {
        true => Few::of_blocks(blocks, room),
        false => Few::of(false, true, blocks, outputs, room),
    }
}

/// Whether calls are a residual's norm, a router, chosen experts and a constant one, all with `relu2` between two products.
pub(crate) fn is_layer(calls: &[Call]) -> bool {
    let ops: Vec<Op> = calls.iter().map(|call| call.op).collect();
    let [norm, router, Op::MoeRoute(dims), up, down, combine, shared_up, shared_down] = ops[..] else {
        return false;
    };
    let is_chosen = |op: Op, want: Epilogue| match op {
        Op::MoeMatmul { experts, top_k, epilogue, .. } => {
            experts == dims.experts && top_k == dims.top_k && epilogue == want
        }
        _ => false,
    };
    let reads = |reader: usize, port: usize, maker: usize, output: usize| {
        let input = calls[reader].inputs.get(port);
        input == calls[maker].outputs.get(output) || (output == 0 && input == calls[maker].rounded.as_ref())
    };
    matches!(norm, Op::RmsNorm { .. })
        && matches!(router, Op::Matmul { epilogue: Epilogue::None, .. })
        && dims.scoring == Scoring::Sigmoid
        && dims.groups == 1
        && dims.experts <= MOST_EXPERTS
        && is_chosen(up, Epilogue::Relu2)
        && is_chosen(down, Epilogue::None)
        && combine == Op::MoeCombine { top_k: dims.top_k, residual: true }
        && matches!(shared_up, Op::Matmul { epilogue: Epilogue::Relu2, .. })
        && matches!(shared_down, Op::Matmul { epilogue: Epilogue::Residual, .. })
        && reads(ROUTER, 0, 0, 0)
        && reads(ROUTE, 0, ROUTER, 0)
        && reads(EXPERTS_UP, 0, 0, 0)
        && reads(EXPERTS_UP, 1, ROUTE, 0)
        && reads(EXPERTS_DOWN, 0, EXPERTS_UP, 0)
        && reads(EXPERTS_DOWN, 1, ROUTE, 0)
        && reads(COMBINE, 0, EXPERTS_DOWN, 0)
        && reads(COMBINE, 1, ROUTE, 1)
        && reads(SHARED_UP, 0, 0, 0)
        && reads(SHARED_DOWN, 0, SHARED_UP, 0)
        && reads(SHARED_DOWN, 1, COMBINE, 0)
        && calls[SHARED_DOWN].rounded.is_none()
        && calls.iter().flat_map(|call| &call.outputs).all(|output| output.rows.base == RowBase::Tokens)
}

fn up_kernel(form: Form, route: &RouteDims, few: Few, norm: NormShape) -> Specialisation {
    let kernel = Specialisation::new(&UP)
        .choose("WEIGHT", form.name())
        .choose("ARENA", "vectors")
        .define("CHOICES", route.experts)
        .define("TOP_K", route.top_k)
        .define("NORMALIZE", usize::from(route.normalize));
    few.define(kernel, norm)
}

/// How the second launch is cut: threads of a workgroup, and of a team with four outputs.
#[derive(Clone, Copy)]
struct DownShape {
    threads: usize,
    team: usize,
    /// Blocks of an expert, and of the constant one.
    blocks: [usize; 2],
    top_k: usize,
}

impl DownShape {
    /// The largest that workgroup memory has room for.
    fn fitting(blocks: [usize; 2], top_k: usize, workgroup_bytes: usize) -> Option<DownShape> {
        let shapes = [[256, 128], [128, 64], [64, 64], [32, 32]];
        let shapes = shapes.map(|[threads, team]| DownShape { threads, team, blocks, top_k });
        shapes.into_iter().find(|shape| shape.bytes() <= workgroup_bytes)
    }

    fn outputs(self) -> usize {
        4 * (self.threads / self.team)
    }

    fn all_blocks(self) -> usize {
        self.blocks[1] + self.top_k * self.blocks[0]
    }

    fn results(self) -> usize {
        self.outputs() * (self.top_k + 1)
    }

    fn bytes(self) -> usize {
        let vectors = self.team * 8 + self.all_blocks() * (self.threads / self.team);
        vectors * 16 + (self.results() + self.top_k) * 4 + 64
    }

    fn kernel(self, form: Form) -> Specialisation {
        Specialisation::new(if form.is_integer() { &DOWN_INTEGERS } else { &DOWN })
            .choose("WEIGHT", form.name())
            .choose("ARENA", "vectors")
            .define("TOP_K", self.top_k)
            .define("THREADS", self.threads)
            .define("TEAM", self.team)
            .define("EXPERT_BLOCKS", self.blocks[0])
            .define("CONSTANT_BLOCKS", self.blocks[1])
            .define("X_VECTORS", self.team * 8)
            .define("SUM_VECTORS", self.all_blocks() * (self.threads / self.team))
            .define("RESULTS", self.results())
    }
}

/// Everything that tests validate.
pub(crate) fn specialisations() -> Vec<Specialisation> {
    let nano = RouteDims {
        scoring: Scoring::Sigmoid,
        experts: 128,
        top_k: 6,
        groups: 1,
        top_groups: 1,
        normalize: true,
        scale: 1.0,
    };
    let few = |form: Form| up_few(form, [64, 1856], 15 << 10);
    let norms = [NormShape::NONE, NormShape { groups: 1, size: 2048 }];
    let down = DownShape::fitting([58, 116], 6, 16 << 10).expect("the released size fits");
    let sized = |form: Form| {
        norms.map(|norm| up_kernel(form, &nano, few(form), norm)).into_iter().chain([down.kernel(form)])
    };
    Form::ALL.into_iter().flat_map(sized).collect()
}

/// Two matrices that one binding shows: experts', and the constant one's.
struct Pair {
    form: Form,
    buffer: wgpu::Buffer,
    experts: WeightRows,
    shared: WeightRows,
}

fn rows_of(
    binding: &Binding,
    experts: usize,
    out: usize,
) -> Result<Option<(Form, wgpu::Buffer, WeightRows)>, BackendError> {
    let matrix = binding.matrix(0, [experts, out, binding.call.inputs[0].cols])?;
    Ok(match &matrix.shards[..] {
        [shard] => Some((matrix.form, shard.buffer.clone(), shard.weight_rows(experts, out))),
        _ => None,
    })
}

fn pair(calls: &mut Calls, [chosen, constant]: [usize; 2]) -> Result<Option<Pair>, BackendError> {
    let binding = calls.of(chosen)?;
    let Op::MoeMatmul { experts, out, .. } = binding.call.op else { binding.wrong_op() };
    let Some((form, buffer, experts)) = rows_of(&binding, experts, out)? else { return Ok(None) };
    let binding = calls.of(constant)?;
    let Op::Matmul { out, .. } = binding.call.op else { binding.wrong_op() };
    let Some(shared) = rows_of(&binding, 1, out)? else { return Ok(None) };
    let is_seen = (form, &buffer) == (shared.0, &shared.1);
    Ok(is_seen.then_some(Pair { form, buffer, experts, shared: shared.2 }))
}

/// What both launches know.
struct Layer {
    route: RouteDims,
    x: View,
    logits: View,
    ids: View,
    weights: View,
    residual: View,
    out: View,
    bias: u32,
    norm: Option<Norm>,
    cols: usize,
    hidden: u32,
    hidden_words: usize,
    choices: u32,
}

/// The two launches of a layer that begins at a call; none where its calls have to run one by one.
pub(crate) fn bind(calls: &mut Calls, first: usize) -> Result<Option<[Vec<Launch>; 2]>, BackendError> {
    let workgroup_bytes = calls.around.device.info.workgroup_bytes;
    let (Some(up), Some(down)) = (
        pair(calls, [first + EXPERTS_UP, first + SHARED_UP])?,
        pair(calls, [first + EXPERTS_DOWN, first + SHARED_DOWN])?,
    ) else {
        return Ok(None);
    };
    let binding = calls.of(first + ROUTE)?;
    let Op::MoeRoute(route) = binding.call.op else { binding.wrong_op() };
    let blocks = [up.experts, up.shared].map(|rows| (rows.outputs as usize).div_ceil(BLOCK));
    if up.form.is_integer() != down.form.is_integer() {
        return Ok(None);
    }
    let hidden_words = (blocks[1] + route.top_k * blocks[0]) * hidden_block_words(down.form);
    let (ids, weights, logits) = (binding.output(0), binding.output(1), binding.input(0));
    let bias = binding.vector(0, route.experts)?;
    let rows = binding.max_tokens.min(MOST_TOKENS);
    let hidden = binding.scratch(rows * hidden_words);
    let choices = binding.scratch(rows * 2 * route.top_k);
    let binding = calls.of(first + COMBINE)?;
    let residual = binding.input(2);
    let binding = calls.of(first + SHARED_DOWN)?;
    let out = binding.output(0);
    let binding = calls.of(first + EXPERTS_UP)?;
    let (x, norm, cols) = (binding.input(0), binding.norm, binding.call.inputs[0].cols);
    let layer = Layer {
        route,
        x,
        logits,
        ids,
        weights,
        residual,
        out,
        bias,
        norm,
        cols,
        hidden,
        hidden_words,
        choices,
    };
    let views = [layer.x, layer.norm.map_or(layer.x, |norm| norm.x), layer.residual, layer.out];
    let shape = DownShape::fitting(blocks, route.top_k, workgroup_bytes);
    let (true, Some(shape)) = (views.into_iter().all(is_aligned), shape) else {
        return Ok(None);
    };
    let Some(ups) = layer.up(&up, workgroup_bytes) else { return Ok(None) };
    Ok(Some([ups, vec![layer.down(&down, shape)]]))
}

impl Layer {
    /// The first launch: for a single token with its norm where there is one, and for several.
    fn up(&self, up: &Pair, workgroup_bytes: usize) -> Option<Vec<Launch>> {
        // Scores, keys in fours, ids, and a block of results.
        let choosing = self.route.experts * 8 + self.route.top_k * 4 + 256;
        let room = workgroup_bytes.checked_sub(choosing)?;
        let few = up_few(up.form, [up.experts.blocks as usize, up.experts.outputs as usize], room);
        let params = UpParams {
            x: self.x,
            logits: self.logits,
            ids: self.ids,
            weights: self.weights,
            experts: up.experts,
            shared_expert: up.shared,
            cols: narrow(self.cols),
            norm: 0,
            eps: 0.0,
            bias: self.bias,
            scale: self.route.scale,
            hidden: self.hidden,
            hidden_words: narrow(self.hidden_words),
            choices: self.choices,
        };
        let tiles = |outputs: u32| outputs.next_multiple_of(narrow(BLOCK)).div_ceil(narrow(few.outputs()));
        let x = narrow(self.route.top_k) * tiles(up.experts.outputs) + tiles(up.shared.outputs);
        let launch = |params: UpParams, norm: NormShape, tokens: std::ops::RangeInclusive<usize>| {
            let kernel = up_kernel(up.form, &self.route, few, norm);
            Launch::new(kernel, &params, move |facts| {
                if tokens.contains(&facts.tokens) { rows_grid(x, facts.tokens) } else { [0; 3] }
            })
            .reading(&up.buffer)
        };
        let Some(norm) = self.norm else {
            return Some(vec![launch(params, NormShape::NONE, 1..=MOST_TOKENS)]);
        };
        if norm.groups != 1 || !few.takes_norm(self.cols, 1, room) {
            return None;
        }
        let single = UpParams { x: norm.x, norm: norm.weight, eps: norm.eps, ..params };
        let shape = NormShape { groups: 1, size: self.cols };
        Some(vec![launch(single, shape, 1..=1), launch(params, NormShape::NONE, 2..=MOST_TOKENS)])
    }

    fn down(&self, down: &Pair, shape: DownShape) -> Launch {
        let params = DownParams {
            residual: self.residual,
            out: self.out,
            experts: down.experts,
            shared_expert: down.shared,
            hidden: self.hidden,
            hidden_words: narrow(self.hidden_words),
            choices: self.choices,
        };
        let x = narrow((self.out.cols as usize).div_ceil(shape.outputs()));
        Launch::new(shape.kernel(down.form), &params, move |facts| {
            if facts.tokens <= MOST_TOKENS { rows_grid(x, facts.tokens) } else { [0; 3] }
        })
        .reading(&down.buffer)
    }
}
