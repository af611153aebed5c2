//! Quantising an output where it is written gives the bits of a separate call.

mod build;

use build::{Builder, backend, hidden, row};
use mambo_cpu::{CpuBackend, Isa};
use mambo_kernel::case::{CaseWeight, Rng};
use mambo_kernel::{
    Backend, CacheLayout, Elem, Epilogue, Op, Operand, Phase, Rows, Segment, SsmDims, StepInputs, ValueType,
};
use mambo_tensor::DType;

/// Two groups of one block each.
const DIMS: SsmDims = SsmDims { heads: 4, head_dim: 16, state: 12, groups: 2, taps: 4 };

const EXPERTS: usize = 4;

/// An op with its weights, and the inputs it reads from each row of the step.
struct Writer {
    op: Op,
    phase: Phase,
    inputs: Vec<ValueType>,
    weights: Vec<CaseWeight>,
    /// Columns, and rows per token, of its output.
    out: (usize, usize),
}

impl Writer {
    fn width(&self) -> usize {
        self.inputs.iter().map(|input| input.cols).sum()
    }

    fn rows(&self, tokens: usize) -> Vec<f32> {
        let mut rng = Rng(7);
        let mut rows = Vec::new();
        for input in (0..tokens).flat_map(|_| &self.inputs) {
            match input.elem {
                Elem::I32 => rows.extend((0..input.cols).map(|_| f32::from_bits(rng.below(EXPERTS) as u32))),
                _ => rows.extend(rng.normals(input.cols, 1.0)),
            }
        }
        rows
    }
}

fn writers() -> Vec<Writer> {
    let mut rng = Rng(5);
    let mut vector = |shape: &[usize]| CaseWeight::f32(shape, &rng.normals(shape.iter().product(), 0.5));
    let (heads, inner, conv) = (DIMS.heads, DIMS.inner(), DIMS.conv_dim());
    let floats = |cols: usize| ValueType::f32(Rows::TOKENS, cols);
    let norm = |cols: usize, weight| {
        let (op, phase) = (Op::RmsNorm { eps: 1e-5 }, Phase::Prefill);
        Writer { op, phase, inputs: vec![floats(cols)], weights: vec![weight], out: (cols, 1) }
    };
    let epilogue = Epilogue::Relu2;
    vec![
        Writer {
            op: Op::Matmul { out: 224, epilogue },
            phase: Phase::Prefill,
            inputs: vec![floats(48)],
            weights: vec![vector(&[224, 48])],
            out: (224, 1),
        },
        Writer {
            op: Op::MoeMatmul { experts: EXPERTS, top_k: 3, out: 96, epilogue },
            phase: Phase::Prefill,
            inputs: vec![floats(48), ValueType { elem: Elem::I32, rows: Rows::TOKENS, cols: 3 }],
            weights: vec![vector(&[EXPERTS, 96, 48])],
            out: (96, 3),
        },
        norm(96, vector(&[96])),
        norm(4096, vector(&[4096])),
        Writer {
            op: Op::GatedGroupNorm { groups: 2, eps: 1e-5 },
            phase: Phase::Prefill,
            inputs: vec![floats(inner), floats(inner)],
            weights: vec![vector(&[inner])],
            out: (inner, 1),
        },
        Writer {
            op: Op::SsmStep { dims: DIMS, eps: 1e-5 },
            phase: Phase::Decode,
            inputs: vec![floats(DIMS.in_proj())],
            out: (inner, 1),
            weights: vec![
                vector(&[conv, DIMS.taps]),
                vector(&[conv]),
                vector(&[heads]),
                CaseWeight::f32(&[heads], &[-1.0, -0.5, -2.0, -0.1]),
                vector(&[heads]),
                vector(&[inner]),
            ],
        },
    ]
}

/// The product of a writer's output, quantised right after it or after another call, and that output.
fn run(
    backend: &mut CpuBackend,
    writer: &Writer,
    weight: &CaseWeight,
    tokens: usize,
    at_once: bool,
) -> Vec<u32> {
    let stride = 4 * writer.width();
    let mut build = Builder::new(backend, writer.phase, tokens);
    let mut start = 0;
    let mut inputs = Vec::new();
    for input in &writer.inputs {
        inputs.push(hidden(start, *input, stride));
        start += 4 * input.cols;
    }
    let cache = matches!(writer.op, Op::SsmStep { .. }).then_some(0);
    let weights: Vec<&CaseWeight> = writer.weights.iter().collect();
    let mut written: Operand = build.call(writer.op, &inputs, &weights, cache)[0];
    let plain = written;
    if !at_once {
        build.call(Op::Relu2, &inputs[..1], &[], None);
    }
    let product = Op::Matmul { out: 32, epilogue: Epilogue::None };
    let (_, elem) = row(build.backend, product, writer.phase, &[weight.dtype], written.cols);
    if elem.is_rounded() {
        written = build.call(Op::Quantize(elem), &[written], &[], None)[0];
    }
    let product = build.call(product, &[written], &[weight], None)[0];
    let id = build.finish(&[product, plain]);

    let x = writer.rows(tokens);
    let ids = vec![0; tokens];
    let segment = |i: u32, rows: u32| Segment { slot: i, first_row: i, rows, position: 0, first_page: 0 };
    let segments: Vec<_> = match writer.phase {
        Phase::Decode => (0..tokens as u32).map(|i| segment(i, 1)).collect(),
        _ => vec![segment(0, tokens as u32)],
    };
    let step = StepInputs { token_ids: &ids, segments: &segments, pages: &[], wanted: &[], hidden: &x };
    backend.run(id, &step).unwrap();
    let mut bits = Vec::new();
    for output in 0..2 {
        let mut out = Vec::new();
        backend.read_output(id, output, 0..tokens * writer.out.1, &mut out);
        bits.extend(out.iter().map(|v| v.to_bits()));
    }
    bits
}

#[test]
fn quantising_where_written_gives_the_same_bits() {
    for (writer, dtype) in writers().iter().flat_map(|w| [DType::Q8_0, DType::BF16].map(|d| (w, d))) {
        let cols = writer.out.0;
        let weight = CaseWeight::encode(dtype, &[32, cols], &Rng(9).normals(32 * cols, 1.0));
        for (isa, tokens) in
            Isa::available().into_iter().flat_map(|isa| [1, 3, 9, 70].map(|tokens| (isa, tokens)))
        {
            let mut backend = backend(isa, 3);
            let layout = CacheLayout { state_layers: vec![DIMS], slots: tokens, ..Default::default() };
            let [joined, apart] = [true, false].map(|at_once| {
                backend.create_caches(&layout).unwrap();
                run(&mut backend, writer, &weight, tokens, at_once)
            });
            assert!(joined == apart, "{:?} of {tokens} tokens to {dtype} with {isa}", writer.op);
        }
    }
}
