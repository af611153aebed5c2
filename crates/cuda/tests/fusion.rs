//! Calls that small steps run as fewer launches give the bits that they give one by one. A program that shows what a
//! fusion would hide runs its calls one by one, so each program runs in both forms.
//! Runs on the GPU of this machine, else on the emulated one: `fusion [--kernels FOLDER]`.

mod emulated;

use std::process::ExitCode;

use mambo_cuda::{CudaBackend, CudaError, CudaOptions};
use mambo_graph::Graph;
use mambo_kernel::{
    Backend, CacheLayout, CacheTypes, Digest, Fetch, HiddenRows, Phase, ProgramId, Segment, StepInputs,
    StepResults, Wait, WeightError, WeightKey, WeightPart, WeightSource, WeightUse,
};
use mambo_plan::{Kernels, LowerOptions, lower};
use mambo_tensor::{DType, encode_row};

/// The emulated GPUs, each with threads and blocks in another order.
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

/// The first output's rows of a step of so many tokens.
fn run(backend: &mut CudaBackend, id: ProgramId, tokens: usize, cols: usize) -> Result<Vec<f32>, String> {
    let mut numbers = Numbers(99);
    let hidden: Vec<f32> = (0..tokens * cols).map(|_| numbers.next()).collect();
    let segment = |row: u32| Segment { slot: row, first_row: row, rows: 1, position: 0, first_page: 0 };
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

/// Compares the forms of two layers for some numbers of tokens.
fn check(backend: &mut CudaBackend, sizes: &Sizes) -> Result<(), String> {
    backend.clear().map_err(|error| error.to_string())?;
    let graph = layers(sizes);
    let shown = |value: usize| format!("output y{value} %{value}\n");
    let fused = compile(backend, &graph, &[shown(18)], sizes.dtype)?;
    let parts = compile(backend, &graph, &[shown(18), shown(6), shown(15)], sizes.dtype)?;
    backend.create_caches(&CacheLayout::default()).map_err(|error| error.to_string())?;
    for tokens in [1, 2, 3, 11, MOST_TOKENS] {
        let counts = [fused, parts].map(|id| backend.launch_count(id, tokens).expect("it was compiled"));
        if counts[0] + 14 > counts[1] {
            return Err(format!("{} launches instead of {} of the parts", counts[0], counts[1]));
        }
        let want = run(backend, parts, tokens, sizes.hidden)?;
        for again in 0..2 {
            let got = run(backend, fused, tokens, sizes.hidden)?;
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() && a.is_finite();
            if let Some(at) = got.iter().zip(&want).position(|pair| !is_same(pair)) {
                let (row, col) = (at / sizes.hidden, at % sizes.hidden);
                return Err(format!(
                    "{tokens} tokens, run {again}: value {col} of row {row} is {} instead of {}",
                    got[at], want[at]
                ));
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
    for settings in EMULATED {
        println!("emulated GPU: {settings}");
        let mut command = emulated::this_program(&folder, settings);
        command.arg("--emulated").arg("--kernels").arg(emulated::kernel_folder());
        all_good &= command.status().is_ok_and(|status| status.success());
    }
    let _ = std::fs::remove_dir_all(&folder);
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let (mut options, mut is_emulated) = (CudaOptions::default(), false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernels" => options.kernel_folder = arguments.next().map(Into::into),
            "--emulated" => is_emulated = true,
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
    for sizes in &LAYERS {
        let result = check(&mut backend, sizes);
        let problem = result.as_ref().err().map_or("same bits", String::as_str);
        println!("{} of {} {}: {problem}", sizes.experts, sizes.hidden, sizes.dtype);
        all_good &= result.is_ok();
    }
    if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
