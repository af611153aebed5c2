//! Calls that small steps run as fewer launches give the bits that they give one by one. A program that shows what a
//! fusion would hide runs its calls one by one, so each program runs in both forms.
//! Runs on the GPU of this machine, else on the emulated one: `fusion [--kernels FOLDER]`.

mod emulated;

use std::collections::HashMap;
use std::process::ExitCode;

use mambo_cuda::{CudaBackend, CudaError, CudaOptions};
use mambo_graph::Graph;
use mambo_kernel::{
    Backend, CacheLayout, CacheTypes, Digest, Fetch, HiddenRows, Phase, ProgramId, Segment, SsmDims,
    StepInputs, StepResults, Wait, WeightError, WeightKey, WeightPart, WeightSource, WeightUse,
};
use mambo_plan::{Kernels, LowerOptions, lower};
use mambo_tensor::{DType, encode_row};

/// The emulated GPUs, each with threads and blocks in another order. The first runs all subjects, the others one of each
/// kind.
const EMULATED: [&str; 3] =
    ["arch=90 order=forward", "arch=80 order=backward", "arch=90 order=7 processors=3"];

/// The most tokens of a step: so many run by the kernels of few rows.
const MOST_TOKENS: usize = 24;

/// Sizes of a layer of experts.
struct Sizes {
    hidden: usize,
    experts: usize,
    top_k: usize,
    width: usize,
    shared_width: usize,
    dtype: DType,
}

const LAYERS: [Sizes; 3] = [
    Sizes { hidden: 224, experts: 9, top_k: 3, width: 96, shared_width: 160, dtype: DType::Q4_0 },
    Sizes { hidden: 1632, experts: 40, top_k: 6, width: 64, shared_width: 128, dtype: DType::Q4_0 },
    Sizes { hidden: 288, experts: 4, top_k: 1, width: 352, shared_width: 32, dtype: DType::Q8_0 },
];

/// Two layers of experts, one on the other.
fn layers(sizes: &Sizes) -> String {
    let Sizes { hidden: h, experts: e, top_k: k, width: w, shared_width: s, .. } = sizes;
    let mut weights = String::new();
    let mut text = format!("%0 = input hidden : f32[T, {h}]\n");
    for layer in 0..2 {
        let at = |n: usize| 9 * layer + n;
        weights.push_str(&format!(
            "weight l{layer}.bias [{e}]\nweight l{layer}.down [{e}, {h}, {w}]\nweight l{layer}.norm [{h}]\n\
             weight l{layer}.router [{e}, {h}]\nweight l{layer}.shared_down [{h}, {s}]\n\
             weight l{layer}.shared_up [{s}, {h}]\nweight l{layer}.up [{e}, {w}, {h}]\n"
        ));
        let [x, norm, logits, ids, chosen, up, down, sum, shared, y] =
            std::array::from_fn(|n| format!("%{}", at(n)));
        text.push_str(&format!(
            "{norm} = rms_norm eps=1e-5 {x} $l{layer}.norm : f32[T, {h}] ; l{layer}.norm
            {logits} = matmul out={e} {norm} $l{layer}.router : f32[T, {e}] ; l{layer}.router
            {ids}, {chosen} = moe_route experts={e} top_k={k} groups=1 top_groups=1 normalize=true scale=2.5 {logits} $l{layer}.bias : i32[T, {k}], f32[T, {k}] ; l{layer}.route
            {up} = moe_matmul experts={e} top_k={k} out={w} epilogue=relu2 {norm} {ids} $l{layer}.up : f32[T*{k}, {w}] ; l{layer}.up
            {down} = moe_matmul experts={e} top_k={k} out={h} {up} {ids} $l{layer}.down : f32[T*{k}, {h}] ; l{layer}.down
            {sum} = moe_combine top_k={k} residual=true {down} {chosen} {x} : f32[T, {h}] ; l{layer}.combine
            {shared} = matmul out={s} epilogue=relu2 {norm} $l{layer}.shared_up : f32[T, {s}] ; l{layer}.shared_up
            {y} = matmul out={h} epilogue=residual {shared} {sum} $l{layer}.shared_down : f32[T, {h}] ; l{layer}.shared_down
            "
        ));
    }
    format!("graph g\n{weights}{text}")
}

/// A norm with one product, and one of that with three.
fn products(hidden: usize) -> String {
    format!(
        "graph g
        weight a.norm [{hidden}]
        weight a.product [{hidden}, {hidden}]
        weight b.norm [{hidden}]
        weight b.first [96, {hidden}]
        weight b.second [40, {hidden}]
        weight b.third [16, {hidden}]
        %0 = input hidden : f32[T, {hidden}]
        %1 = rms_norm eps=1e-5 %0 $a.norm : f32[T, {hidden}] ; a.norm
        %2 = matmul out={hidden} %1 $a.product : f32[T, {hidden}] ; a.product
        %3 = add %0 %2 : f32[T, {hidden}] ; a.sum
        %4 = rms_norm eps=1e-5 %3 $b.norm : f32[T, {hidden}] ; b.norm
        %5 = matmul out=96 %4 $b.first : f32[T, 96] ; b.first
        %6 = matmul out=40 %4 $b.second : f32[T, 40] ; b.second
        %7 = matmul out=16 %4 $b.third : f32[T, 16] ; b.third
        %8 = concat %5 %6 : f32[T, 136] ; b.two
        %9 = concat %8 %7 : f32[T, 152] ; b.three
        "
    )
}

/// A mixer of one token and the product of it.
const MIXER: SsmDims = SsmDims { heads: 4, head_dim: 32, state: 32, groups: 2, taps: 4 };

fn mixer() -> String {
    let SsmDims { heads, head_dim, state, groups, taps } = MIXER;
    let (inner, conv) = (MIXER.inner(), MIXER.conv_dim());
    let cols = inner + conv + heads;
    format!(
        "graph g
        state 0 heads={heads} head_dim={head_dim} state={state} groups={groups} taps={taps}
        weight l.a [{heads}]
        weight l.conv [{conv}, {taps}]
        weight l.conv_bias [{conv}]
        weight l.d [{heads}]
        weight l.dt_bias [{heads}]
        weight l.norm [{inner}]
        weight l.out [{cols}, {inner}]
        %0 = input hidden : f32[T, {cols}]
        %1 = ssm_step eps=1e-5 %0 $l.conv $l.conv_bias $l.dt_bias $l.a $l.d $l.norm @state0 : f32[T, {inner}] ; l.scan
        %2 = matmul out={cols} epilogue=residual %1 %0 $l.out : f32[T, {cols}] ; l.out
        "
    )
}

/// What runs in both forms.
struct Subject {
    name: String,
    graph: String,
    dtype: DType,
    hidden: usize,
    /// The value that is compared, and its columns.
    output: (usize, usize),
    /// Values that fusions hide.
    hides: &'static [usize],
    /// Tokens of a step, and the fewest launches that fusions save.
    saves: Vec<(usize, usize)>,
    /// Steps, at one position after the other.
    steps: u32,
}

fn subjects(one_of_each: bool) -> Vec<Subject> {
    let most = if one_of_each { 1 } else { usize::MAX };
    let of_layers = |sizes: &Sizes| Subject {
        name: format!("{} experts of {} {}", sizes.experts, sizes.hidden, sizes.dtype),
        graph: layers(sizes),
        dtype: sizes.dtype,
        hidden: sizes.hidden,
        output: (18, sizes.hidden),
        hides: &[6, 15],
        // One launch more a layer adds up the products of several tokens.
        saves: [(1, 14), (2, 12), (3, 12), (11, 12), (MOST_TOKENS, 12)].into(),
        steps: 2,
    };
    let of_products = |(hidden, dtype): (usize, DType)| Subject {
        name: format!("products of {hidden} {dtype}"),
        graph: products(hidden),
        dtype,
        hidden,
        output: (9, 152),
        hides: &[1, 4],
        saves: vec![(1, 3), (2, 0)],
        steps: 2,
    };
    let cols = MIXER.inner() + MIXER.conv_dim() + MIXER.heads;
    let of_mixer = |dtype| Subject {
        name: format!("a mixer of {} {dtype}", MIXER.inner()),
        graph: mixer(),
        dtype,
        hidden: cols,
        output: (2, cols),
        hides: &[1],
        // Over the end of a chunk.
        saves: vec![(1, 0), (3, 0), (MOST_TOKENS, 0)],
        steps: 35,
    };
    let widths = [(224, DType::Q4_0), (608, DType::Q8_0), (1632, DType::Q4_0)];
    let layers = LAYERS.iter().map(of_layers).take(most);
    let products = widths.into_iter().map(of_products).take(most);
    layers.chain(products).chain([DType::Q4_0, DType::Q8_0].map(of_mixer).into_iter().take(most)).collect()
}

/// Numbers between -1 and 1.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

struct Source {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Source {
    fn of(key: &WeightKey, shape: &[usize], dtype: DType) -> Source {
        let seed =
            key.name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut numbers = Numbers(seed);
        let cols = *shape.last().expect("weights have columns");
        let rows = shape.iter().product::<usize>() / cols;
        let mut bytes = vec![0; rows * dtype.row_bytes(cols).expect("whole blocks")];
        for row in bytes.chunks_exact_mut(dtype.row_bytes(cols).expect("whole blocks")) {
            let values: Vec<f32> = (0..cols).map(|_| numbers.next() * 0.2).collect();
            encode_row(dtype, &values, row).expect("a type that can be written");
        }
        Source { dtype, shape: shape.to_vec(), bytes }
    }
}

impl WeightSource for Source {
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn part_count(&self) -> usize {
        1
    }
    fn part(&self, _: usize) -> Result<WeightPart<'_>, WeightError> {
        Ok(WeightPart::plain(&self.bytes))
    }
    fn release(&self, _: usize) {}
    fn digest(&self) -> u64 {
        Digest::of(&self.bytes)
    }
}

/// A program of a graph whose `outputs` are shown.
fn compile(
    backend: &mut CudaBackend,
    graph: &str,
    outputs: &[String],
    dtype: DType,
) -> Result<ProgramId, String> {
    let text = format!("{graph}{}", outputs.concat());
    let graph: Graph = text.parse().map_err(|error| format!("{error}\n{text}"))?;
    let type_of = |name: &str| {
        let is_plain = ["bias", "norm", "router"].iter().any(|end| name.ends_with(end));
        if is_plain { DType::F32 } else { dtype }
    };
    let weight_type = |name: &str| Some(type_of(name));
    let options = LowerOptions {
        name: "layers",
        phase: Phase::Decode,
        max_tokens: MOST_TOKENS,
        max_wanted: MOST_TOKENS,
        caches: CacheTypes::default(),
        weight_type: &weight_type,
    };
    let program = lower(&graph, &Kernels::of(backend), &options).map_err(|error| error.to_string())?;
    for key in &program.weights {
        let weight = graph.weights.iter().find(|weight| weight.name == key.name).expect("it is the graph's");
        let dtype = if key.usage == WeightUse::Vector { DType::F32 } else { type_of(&key.name) };
        let source = Source::of(key, &weight.shape, dtype);
        backend.load_weight(key, &source).map_err(|error| error.to_string())?;
    }
    backend.compile(program).map_err(|error| error.to_string())
}

/// The first output's rows of a step of so many tokens, each of a sequence at this position, from this slot on.
fn run(
    backend: &mut CudaBackend,
    id: ProgramId,
    (tokens, cols): (usize, usize),
    (slot, position): (usize, u32),
) -> Result<Vec<f32>, String> {
    let mut numbers = Numbers(99 + u64::from(position));
    let hidden: Vec<f32> = (0..tokens * cols).map(|_| numbers.next()).collect();
    let segment =
        |row: u32| Segment { slot: slot as u32 + row, first_row: row, rows: 1, position, first_page: 0 };
    let segments: Vec<Segment> = (0..tokens as u32).map(segment).collect();
    let step = StepInputs {
        token_ids: &vec![0; tokens],
        segments: &segments,
        pages: &vec![0; tokens],
        hidden: HiddenRows::Given(&hidden),
        fetch: &[Fetch { output: 0, rows: 0..tokens as u32 }],
        ..StepInputs::default()
    };
    let mut results = StepResults::default();
    let error = |error: mambo_kernel::BackendError| error.to_string();
    backend.poison_arena().map_err(error)?;
    let ticket = backend.submit(id, &step).map_err(error)?;
    while !backend.collect(ticket, Wait::Block, &mut results).map_err(error)? {}
    Ok(results.rows.swap_remove(0))
}

/// Compares both forms for some numbers of tokens.
fn check(backend: &mut CudaBackend, subject: &Subject) -> Result<(), String> {
    backend.clear().map_err(|error| error.to_string())?;
    let shown = |value: usize| format!("output y{value} %{value}\n");
    let (output, cols) = subject.output;
    let fused = compile(backend, &subject.graph, &[shown(output)], subject.dtype)?;
    let all: Vec<String> = std::iter::once(output).chain(subject.hides.iter().copied()).map(shown).collect();
    let parts = compile(backend, &subject.graph, &all, subject.dtype)?;
    let caches = CacheLayout { state_layers: vec![MIXER], slots: 2 * MOST_TOKENS, ..CacheLayout::default() };
    backend.create_caches(&caches).map_err(|error| error.to_string())?;
    let mut firsts: HashMap<u32, Vec<f32>> = HashMap::new();
    for &(tokens, saved) in &subject.saves {
        let counts = [fused, parts].map(|id| backend.launch_count(id, tokens).expect("it was compiled"));
        if counts[0] + saved > counts[1] {
            return Err(format!(
                "{tokens} tokens are {} launches, and {} of the parts",
                counts[0], counts[1]
            ));
        }
        for step in 0..subject.steps {
            let sizes = (tokens, subject.hidden);
            let want = run(backend, parts, sizes, (0, step))?;
            let got = run(backend, fused, sizes, (MOST_TOKENS, step))?;
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() && a.is_finite();
            if let Some(at) = got.iter().zip(&want).position(|pair| !is_same(pair)) {
                let (row, col) = (at / cols, at % cols);
                return Err(format!(
                    "{tokens} tokens, step {step}: value {col} of row {row} is {} instead of {}",
                    got[at], want[at]
                ));
            }
            // The first row alone and in company.
            let first = firsts.entry(step).or_insert_with(|| got[..cols].to_vec());
            if first.iter().zip(&got).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(format!("{tokens} tokens, step {step}: the first row is not what it is alone"));
            }
        }
    }
    Ok(())
}

/// Runs this program on emulated GPUs.
fn on_emulated_gpus() -> ExitCode {
    let folder = match emulated::build() {
        Ok(folder) => folder,
        Err(reason) => {
            println!("SKIPPED: there is no GPU, and none can be emulated: {reason}");
            return ExitCode::SUCCESS;
        }
    };
    let mut all_good = true;
    for (index, settings) in EMULATED.into_iter().enumerate() {
        println!("emulated GPU: {settings}");
        let mut command = emulated::this_program(&folder, settings);
        command.arg("--emulated").arg("--kernels").arg(emulated::kernel_folder());
        if index > 0 {
            command.arg("--one-of-each");
        }
        all_good &= command.status().is_ok_and(|status| status.success());
    }
    let _ = std::fs::remove_dir_all(&folder);
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let (mut options, mut is_emulated, mut one_of_each) = (CudaOptions::default(), false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernels" => options.kernel_folder = arguments.next().map(Into::into),
            "--emulated" => is_emulated = true,
            "--one-of-each" => one_of_each = true,
            _ => {}
        }
    }
    let mut backend = match CudaBackend::new(&options) {
        Ok(backend) => backend,
        Err(CudaError::NoGpu(_) | CudaError::Compiler(_)) if !is_emulated => return on_emulated_gpus(),
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut all_good = true;
    for subject in subjects(one_of_each) {
        let result = check(&mut backend, &subject);
        let problem = result.as_ref().err().map_or("same bits", String::as_str);
        println!("{}: {problem}", subject.name);
        all_good &= result.is_ok();
    }
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
