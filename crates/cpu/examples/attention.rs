//! Measures attention of one token, or of a few, over a long context: GB/s of keys and values against a plain read
//! loop. `cargo run --release -p mambo-cpu --example attention [threads [depth [rows]]]`

use std::time::Instant;

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_kernel::{
    Attention, AttentionDims, Backend, CacheLayout, Call, Cell, Elem, HiddenRows, KvElem, KvGroup, KvTypes,
    Op, OpKind, Operand, Output, PAGE_TOKENS, Phase, Place, Program, Rows, Segment, StepInputs, StepResults,
    Wait,
};

/// The attention layers of nano-4b, and their sizes.
const LAYERS: usize = 4;
const DIMS: AttentionDims = AttentionDims { q_heads: 40, kv_heads: 8, head_dim: 128 };
/// Steps measured; the median counts.
const REPEATS: usize = 41;

fn program(backend: &CpuBackend, rows: usize) -> Program {
    let (q, kv) = (DIMS.q_heads * DIMS.head_dim, DIMS.kv_heads * DIMS.head_dim);
    let operand = |place, cols: usize, stride| Operand {
        place,
        elem: Elem::F32,
        rows: Rows::TOKENS,
        cols,
        stride_bytes: 4 * stride,
    };
    let width = q + 2 * kv;
    let input = |start: usize, cols| operand(Place::Hidden(4 * start), cols, width);
    let output = operand(Place::Arena(0), q, q);
    let kernel = backend.kernels().iter().position(|k| k.op == OpKind::Attention).expect("an attention");
    let call = |layer| Call {
        op: Op::Attention(Attention::plain(DIMS)),
        kernel,
        label: "attention".into(),
        inputs: vec![input(0, q), input(q, kv), input(q + kv, kv)],
        outputs: vec![output],
        rounded: None,
        weights: Vec::new(),
        cache: Some(layer),
        // All layers write one place.
        after: layer.checked_sub(1).into_iter().collect(),
    };
    Program {
        name: "attention".into(),
        phase: Phase::Prefill,
        max_tokens: rows,
        max_wanted: rows,
        calls: (0..LAYERS).map(call).collect(),
        weights: Vec::new(),
        outputs: vec![Output { name: "y".into(), operand: output }],
        arena_bytes: rows * output.stride_bytes,
        unpooled_bytes: 0,
    }
}

fn main() {
    let number = |index: usize, otherwise: usize| {
        std::env::args().nth(index).map_or(otherwise, |a| a.parse().expect("a number"))
    };
    let (threads, depth, rows) = (number(1, 0), number(2, 16384), number(3, 1));
    let options = CpuOptions { threads, isa: None, every_thread: true, ..CpuOptions::default() };
    let mut backend = CpuBackend::new(options).expect("a backend");
    let read = backend.read_bandwidth(400 << 20).expect("memory to read");
    let pages = (depth + rows).div_ceil(PAGE_TOKENS);
    let layout = CacheLayout {
        kv_layers: vec![DIMS; LAYERS],
        kv_types: KvTypes { k: KvElem::F16, v: KvElem::F16 },
        kv_groups: vec![KvGroup { window: None, layers: (0..LAYERS).collect(), pages }],
        ..CacheLayout::default()
    };
    backend.create_caches(&layout).expect("memory for caches");
    // f16 values around one.
    let bytes: Vec<u8> =
        (0..layout.kv_bytes() / pages).map(|i| if i % 2 == 0 { (i / 2) as u8 } else { 0x3b }).collect();
    for page in 0..pages {
        backend.import_cell(Cell::Page { group: 0, page: page as u32 }, &bytes).expect("a page");
    }
    let id = backend.compile(program(&backend, rows)).expect("the program compiles");
    let width = (DIMS.q_heads + 2 * DIMS.kv_heads) * DIMS.head_dim;
    let hidden: Vec<f32> = (0..rows * width).map(|i| (i % 37) as f32 / 64.0 - 0.25).collect();
    let (ids, list) = (vec![0; rows], (0..pages as u32).collect::<Vec<_>>());
    let segments =
        [Segment { slot: 0, first_row: 0, rows: rows as u32, position: depth as u32, first_page: 0 }];
    let hidden = HiddenRows::Given(&hidden);
    let step =
        StepInputs { token_ids: &ids, segments: &segments, pages: &list, hidden, ..Default::default() };
    let mut results = StepResults::default();
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let begin = Instant::now();
        let ticket = backend.submit(id, &step).expect("the step runs");
        backend.collect(ticket, Wait::Block, &mut results).expect("the step ran");
        seconds.push(begin.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let (median, best) = (seconds[REPEATS / 2], seconds[0]);
    let context_bytes = (layout.kv_bytes_per_token() * depth) as f64;
    println!(
        "{}: plain read {read:.1} GB/s; {rows} tokens after {depth}: {:.2} ms (best {:.2}), {:.1} GB/s, {:.0} GFLOP/s",
        backend.name(),
        median * 1e3,
        best * 1e3,
        context_bytes / median / 1e9,
        (4 * LAYERS * DIMS.q_heads * DIMS.head_dim * depth * rows) as f64 / median / 1e9,
    );
}
