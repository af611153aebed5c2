//! Measures matmul on this machine: GB/s of a few rows over a large matrix against a plain read loop, and GOP/s of
//! eight rows or more over a small one.
//! `cargo run --release -p mambo-cpu --example throughput [threads [isa [type [tokens]]]]`

use std::time::Instant;

use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_kernel::{
    Backend, Call, Digest, Elem, Epilogue, HiddenRows, Op, OpKind, Operand, Output, Phase, Place, Program,
    Rows, Segment, StepInputs, StepResults, ValueType, Wait, WeightError, WeightKey, WeightPart,
    WeightSource, WeightUse,
};
use mambo_tensor::DType;

const COLS: usize = 4096;
/// Repetitions; the fastest counts, because other programs interfere.
const REPEATS: usize = 30;
/// Bytes of the matrix, and of the plain loop, read from memory: more than most caches hold.
const MEMORY_BYTES: usize = 512 << 20;
/// Output rows of the matrix multiplied from cache with many tokens.
const GEMM_ROWS: usize = 2048;

/// Pseudo-random codes with scales of one.
struct Source {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Source {
    fn new(dtype: DType, rows: usize) -> Source {
        let mut bytes = vec![0u8; rows * dtype.row_bytes(COLS).expect("whole blocks")];
        let mut seed = 1u32;
        for byte in &mut bytes {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8 & 0x3b;
        }
        Source { dtype, shape: vec![rows, COLS], bytes }
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

fn program(backend: &CpuBackend, key: &WeightKey, dtype: DType, rows: usize, tokens: usize) -> Program {
    let row = |op| {
        let (weight_types, inputs) = (&[dtype], &[ValueType::f32(Rows::TOKENS, COLS)]);
        let caches = Default::default();
        let site = mambo_kernel::Site { op: &op, phase: Phase::Decode, inputs, weight_types, caches };
        let found = backend.kernels().iter().position(|k| k.op == op.kind() && (k.accepts)(&site));
        found.expect("a row for every type")
    };
    let operand = |offset: usize, elem: Elem, cols: usize| Operand {
        place: Place::Arena(offset),
        elem,
        rows: Rows::TOKENS,
        cols,
        stride_bytes: elem.row_bytes(cols),
    };
    let matmul = Op::Matmul { out: rows, epilogue: Epilogue::None };
    let input = backend.kernels()[row(matmul)].inputs[0];
    let hidden = Operand { place: Place::Hidden(0), ..operand(0, Elem::F32, COLS) };
    let x = operand(0, input, COLS);
    let y = operand(tokens * x.stride_bytes, Elem::F32, rows);
    let call = |op, x, y, weights| Call {
        op,
        kernel: row(op),
        label: op.kind().name().into(),
        inputs: vec![x],
        outputs: vec![y],
        rounded: None,
        weights,
        cache: None,
        after: Vec::new(),
    };
    let calls = match input {
        to if to.is_private() => {
            let product = Call { after: vec![0], ..call(matmul, x, y, vec![0]) };
            vec![call(Op::Quantize(to), hidden, x, vec![]), product]
        }
        _ => vec![call(matmul, hidden, y, vec![0])],
    };
    Program {
        name: "throughput".into(),
        phase: if tokens == 1 { Phase::Decode } else { Phase::Prefill },
        max_tokens: tokens,
        max_wanted: tokens,
        calls,
        weights: vec![key.clone()],
        outputs: vec![Output { name: "y".into(), operand: y }],
        arena_bytes: tokens * (x.stride_bytes + y.stride_bytes),
        unpooled_bytes: 0,
    }
}

fn best_seconds(backend: &mut CpuBackend, key: &WeightKey, dtype: DType, rows: usize, tokens: usize) -> f64 {
    let id = backend.compile(program(backend, key, dtype, rows, tokens)).expect("the program compiles");
    let hidden: Vec<f32> = (0..tokens * COLS).map(|i| (i % 37) as f32 - 18.0).collect();
    let ids = vec![0; tokens];
    let segments = [Segment { slot: 0, first_row: 0, rows: tokens as u32, position: 0, first_page: 0 }];
    let hidden = HiddenRows::Given(&hidden);
    let step = StepInputs { token_ids: &ids, segments: &segments, hidden, ..Default::default() };
    let mut results = StepResults::default();
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let begin = Instant::now();
        let ticket = backend.submit(id, &step).expect("the step runs");
        backend.collect(ticket, Wait::Block, &mut results).expect("the step ran");
        best = best.min(begin.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let threads = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(0);
    let wanted = |index: usize, name: &str| args.get(index).is_none_or(|a| a == name);
    for isa in Isa::available().into_iter().rev().filter(|isa| wanted(2, isa.name())) {
        let mut backend = CpuBackend::new(CpuOptions {
            threads,
            isa: Some(isa),
            every_thread: true,
            ..CpuOptions::default()
        })
        .expect("a backend");
        let read = backend.read_bandwidth(MEMORY_BYTES).expect("memory to read");
        println!("{}: plain read {read:.1} GB/s", backend.name());
        let usual = [DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::Q4K, DType::Q6K, DType::BF16, DType::F32];
        let types = match args.get(3) {
            Some(name) => vec![DType::from_name(name).expect("a type of that name")],
            None => usual.to_vec(),
        };
        for dtype in types {
            let rows = MEMORY_BYTES / dtype.row_bytes(COLS).expect("whole blocks");
            let (key, bytes, pack) = load(&mut backend, dtype, rows);
            print!("  {dtype:5} pack {:5.1} GB/s", bytes as f64 / pack / 1e9);
            let only: Option<usize> = args.get(4).and_then(|a| a.parse().ok());
            for tokens in [1, 2, 4, 8].into_iter().filter(|t| only.is_none_or(|only| only == *t)) {
                let seconds = best_seconds(&mut backend, &key, dtype, rows, tokens);
                print!("  {tokens}: {:.1} GB/s", bytes as f64 / seconds / 1e9);
            }
            let (key, ..) = load(&mut backend, dtype, GEMM_ROWS);
            for tokens in
                [8, 16, 24, 32, 48, 64, 512].into_iter().filter(|t| only.is_none_or(|only| only == *t))
            {
                let seconds = best_seconds(&mut backend, &key, dtype, GEMM_ROWS, tokens);
                let ops = 2.0 * (GEMM_ROWS * COLS * tokens) as f64;
                print!("  {tokens}: {:.0} GOP/s", ops / seconds / 1e9);
            }
            println!();
        }
    }
}

/// Packs a matrix; returns its key, its bytes and the seconds it took.
fn load(backend: &mut CpuBackend, dtype: DType, rows: usize) -> (WeightKey, usize, f64) {
    let row = backend.kernels().iter().find(|k| k.op == OpKind::Matmul).expect("a matmul");
    let key = WeightKey { name: format!("{dtype} {rows}"), usage: WeightUse::Matrix, form: row.weight_form };
    let source = Source::new(dtype, rows);
    let before = backend.weight_bytes();
    let begin = Instant::now();
    backend.load_weight(&key, &source).expect("the weight packs");
    (key, (backend.weight_bytes() - before) as usize, begin.elapsed().as_secs_f64())
}
