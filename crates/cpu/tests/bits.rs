//! Same bits on every instruction set and thread count, fused and unfused, before and after a snapshot; and no panic on
//! NaN or infinity.

mod build;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use build::{Builder, Source, backend, hidden, row, run};
use mambo_cpu::{CpuBackend, Isa};
use mambo_kernel::case::{Case, CaseWeight, Rng};
use mambo_kernel::{
    Attention, Backend, CacheLayout, Call, Cell, ChooseInputs, ChooseRow, Elem, Epilogue, HiddenRows,
    MaskSource, Masks, Op, OpKind, Operand, Output, PAGE_TOKENS, Phase, Place, Program, ProgramId,
    ReferenceBackend, Rollback, Rows, Scoring, Segment, SsmDims, StateElem, StepInputs, ValueType, WeightKey,
    WeightUse, ops,
};
use mambo_tensor::DType;

/// Runs a case's first sequences in one step and returns every output's bits.
fn run_case(case: &Case, isa: Isa, threads: usize) -> Vec<u32> {
    run_scaled(case, isa, threads, &[1.0])
}

fn run_scaled(case: &Case, isa: Isa, threads: usize, scales: &[f32]) -> Vec<u32> {
    let mut backend = backend(isa, threads);
    let phase = if case.op.kind() == OpKind::SsmStep { Phase::Decode } else { Phase::Prefill };
    let lengths: Vec<usize> =
        case.lengths.iter().map(|&n| if phase == Phase::Decode { 1 } else { n }).collect();
    let tokens: usize = lengths.iter().sum();
    let pages = lengths.iter().map(|n| n.div_ceil(PAGE_TOKENS)).max().unwrap();
    let layout = case.caches(pages * lengths.len());
    backend.create_caches(&layout).unwrap();
    let types: Vec<DType> = case.weights.iter().map(|w| w.dtype).collect();
    let (_, elem) = row(&backend, case.op, phase, &types, case.inputs[0].ty.cols);
    let mut build = Builder::new(&mut backend, phase, tokens);
    let (mut values, mut inputs) = (Vec::new(), Vec::new());
    for given in &case.inputs {
        inputs.push(hidden(values.len() * 4, given.ty, given.ty.cols * 4));
        for (sequence, &n) in given.sequences.iter().zip(&lengths) {
            values.extend_from_slice(&sequence[..n * given.ty.rows.times * given.ty.cols]);
        }
    }
    if case.op == Op::GatherRows {
        let ty = ValueType::i32(Rows::WANTED, 1);
        inputs.push(Operand { place: Place::Wanted, ..hidden(0, ty, 4) });
    }
    if elem.is_private() {
        inputs[0] = build.call(Op::Quantize(elem), &inputs[..1], &[], None)[0];
    }
    let weights: Vec<&CaseWeight> = case.weights.iter().collect();
    build.scales = scales.to_vec();
    let outputs = build.call(case.op, &inputs, &weights, case.op.cache().map(|_| case.layer()));
    let id = build.finish(&outputs);
    let mut segments = Vec::new();
    let mut first_row = 0;
    for (s, &n) in lengths.iter().enumerate() {
        let first_page = (s * pages) as u32;
        segments.push(Segment { slot: s as u32, first_row, rows: n as u32, position: 0, first_page });
        first_row += n as u32;
    }
    let all: Vec<u32> = (0..tokens as u32).collect();
    let page_list: Vec<u32> = (0..(pages * lengths.len()) as u32).rev().collect();
    let page_list = page_list.repeat(layout.kv_groups.len());
    let choose_rows: Vec<_> = case.choose.rows.iter().flatten().cloned().collect();
    let step = StepInputs {
        token_ids: &all,
        segments: &segments,
        pages: &page_list,
        wanted: &all,
        hidden: HiddenRows::Given(&values),
        choose: ChooseInputs {
            rows: &choose_rows,
            adjustments: &case.choose.adjustments,
            masks: Masks::of(&case.choose),
        },
        ..Default::default()
    };
    run(&mut backend, id, &step).into_iter().flatten().map(|v| v.to_bits()).collect()
}

fn all_cases() -> impl Iterator<Item = Case> {
    // Lookups by token id are covered by the contract; here ids would have to be in range.
    let kinds = OpKind::ALL.into_iter().filter(|k| !matches!(k, OpKind::Split | OpKind::Embed));
    kinds.flat_map(ops::cases)
}

/// Allows all tokens once several threads have asked at the same time.
struct Together {
    asking: AtomicUsize,
    threads: usize,
}

impl MaskSource for Together {
    fn fill(&self, _: u32, mask: &mut [u32]) {
        self.asking.fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while self.asking.load(Ordering::SeqCst) < self.threads {
            assert!(begin.elapsed() < Duration::from_secs(60), "one thread makes all masks");
            std::thread::yield_now();
        }
        mask.fill(u32::MAX);
    }
}

#[test]
fn threads_make_masks_at_the_same_time() {
    let threads = 3;
    let (mut backend, ty) = (backend(Isa::Portable, threads), ValueType::f32(Rows::WANTED, 97));
    backend.create_caches(&CacheLayout { slots: 5, ..CacheLayout::default() }).unwrap();
    let mut build = Builder::new(&mut backend, Phase::Decode, 5);
    let outputs = build.call(Op::Choose, &[hidden(0, ty, 97 * 4)], &[], None);
    let id = build.finish(&outputs);
    let segment = |row| Segment { slot: row, first_row: row, rows: 1, position: 0, first_page: 0 };
    let rows: Vec<u32> = (0..5).collect();
    // Rows without a mask stand between those with one, and must not keep a thread from them.
    let how = |row: &u32| ChooseRow { mask: Some(*row).filter(|row| *row != 1), ..ChooseRow::default() };
    let values: Vec<f32> = (0..5 * 97).map(|i| if i % 97 == i / 97 { 1.0 } else { 0.0 }).collect();
    let source = Together { asking: AtomicUsize::new(0), threads };
    let step = StepInputs {
        token_ids: &rows,
        segments: &rows.iter().copied().map(segment).collect::<Vec<_>>(),
        wanted: &rows,
        hidden: HiddenRows::Given(&values),
        choose: ChooseInputs {
            rows: &rows.iter().map(how).collect::<Vec<_>>(),
            masks: Masks::of(&source),
            ..ChooseInputs::default()
        },
        ..StepInputs::default()
    };
    assert_eq!(run(&mut backend, id, &step), [[0.0, 1.0, 2.0, 3.0, 4.0]]);
    assert_eq!(source.asking.into_inner(), 4);
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    for case in all_cases() {
        let want = run_case(&case, Isa::Portable, 1);
        // Tile registers sum bf16 products in their own order.
        let is_bf16 = case.weights.first().is_some_and(|w| w.dtype == DType::BF16);
        for isa in Isa::available() {
            let own = (isa == Isa::Amx && is_bf16).then(|| run_case(&case, isa, 2));
            for threads in [1, 3] {
                let same = run_case(&case, isa, threads) == *own.as_ref().unwrap_or(&want);
                assert!(same, "{} {} differs with {isa} x{threads}", case.op.kind().name(), case.name);
            }
        }
    }
}

/// Few rows take a different code path than many.
#[test]
fn a_row_has_the_same_bits_alone_and_in_a_batch() {
    for case in [OpKind::Matmul, OpKind::MoeMatmul].into_iter().flat_map(ops::cases) {
        for isa in Isa::available() {
            let together = run_case(&case, isa, 2);
            let mut apart = Vec::new();
            for (k, &length) in case.lengths.iter().enumerate() {
                let mut single = case.clone();
                single.lengths = vec![length];
                for input in &mut single.inputs {
                    input.sequences = vec![input.sequences[k].clone()];
                }
                apart.extend(run_case(&single, isa, 1));
            }
            assert!(together == apart, "{} {} with {isa}", case.op.kind().name(), case.name);
        }
    }
}

#[test]
fn nan_and_infinity_do_not_panic() {
    for mut case in all_cases() {
        for input in case.inputs.iter_mut().filter(|i| i.ty.elem == Elem::F32) {
            for (i, value) in input.sequences.iter_mut().flatten().enumerate() {
                *value = match i % 7 {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => f32::NEG_INFINITY,
                    3 => f32::MAX,
                    4 => f32::from_bits(1),
                    _ => *value,
                };
            }
        }
        for isa in Isa::available() {
            run_case(&case, isa, 2);
        }
    }
}

/// Bounds, masks and maxima must not lose what is not a number.
#[test]
fn nan_passes_through() {
    let kinds = [
        OpKind::LayerNorm,
        OpKind::HeadNorm,
        OpKind::Rope,
        OpKind::Glu,
        OpKind::Bias,
        OpKind::MoeBias,
        OpKind::SoftCap,
        OpKind::ShortConv,
        OpKind::DeltaScan,
        OpKind::Attention,
        OpKind::MoeRoute,
    ];
    for mut case in kinds.into_iter().flat_map(ops::cases) {
        // A sigmoid router chooses what is not a number last.
        if matches!(case.op, Op::MoeRoute(route) if route.scoring == Scoring::Sigmoid) {
            continue;
        }
        case.inputs[0].sequences[0][0] = f32::NAN;
        for isa in Isa::available() {
            let has_nan = run_case(&case, isa, 2).into_iter().any(|bits| f32::from_bits(bits).is_nan());
            assert!(has_nan, "{} {} with {isa}", case.op.kind().name(), case.name);
        }
    }
}

/// Rounding activations must not turn what is not a number into one: the answer would be made up.
#[test]
fn what_is_not_a_number_reaches_every_product_of_its_row() {
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mut case in ops::cases(OpKind::Matmul) {
            let Op::Matmul { out, epilogue: Epilogue::None } = case.op else { continue };
            let cols = case.inputs[0].ty.cols;
            case.inputs[0].sequences[0][cols - 1] = odd;
            for isa in Isa::available() {
                let bits = run_case(&case, isa, 2);
                let row = bits[..out].iter().map(|bits| f32::from_bits(*bits));
                assert!(row.clone().all(|v| !v.is_finite()), "{} with {isa}: {:?}", case.name, row);
            }
        }
    }
}

/// Powers of two, so that a scaled product is exact.
#[test]
fn part_scales_apply_to_products() {
    let isa = Isa::detect();
    let scaled = |bits: Vec<u32>, factor: &dyn Fn(usize) -> f32| -> Vec<u32> {
        bits.iter().enumerate().map(|(i, b)| (f32::from_bits(*b) * factor(i)).to_bits()).collect()
    };
    for case in ops::cases(OpKind::Matmul) {
        let Op::Matmul { out: 40, epilogue: Epilogue::None } = case.op else { continue };
        let want = scaled(run_case(&case, isa, 2), &|_| 4.0);
        assert!(run_scaled(&case, isa, 2, &[4.0, 4.0]) == want, "{}", case.name);
        let rows: Vec<f32> = (0..40).map(|row| [0.5, 2.0, 8.0][row % 3]).collect();
        let want = scaled(run_case(&case, isa, 2), &|i| rows[i % 40]);
        assert!(run_scaled(&case, isa, 2, &rows) == want, "{}, a scale for each row", case.name);
    }
    for case in ops::cases(OpKind::MoeMatmul) {
        let Op::MoeMatmul { experts: 7, out, epilogue: Epilogue::None, .. } = case.op else { continue };
        let scales = [0.5, 2.0, 0.25, 8.0, 4.0, 1.0, 16.0];
        let ids: Vec<usize> =
            case.inputs[1].sequences.iter().flatten().map(|id| id.to_bits() as usize).collect();
        let want = scaled(run_case(&case, isa, 2), &|i| scales[ids[i / out]]);
        assert!(run_scaled(&case, isa, 2, &scales) == want, "{}", case.name);
    }
}

#[test]
fn part_scales_apply_to_vectors_and_tables() {
    let mut backend = backend(Isa::detect(), 1);
    let table = CaseWeight::f32(&[4, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
    let norm = CaseWeight::f32(&[3], &[1.0, 1.0, 1.0]);
    let mut build = Builder::new(&mut backend, Phase::Prefill, 4);
    build.scales = vec![2.0, 0.5];
    let ids = Operand { place: Place::TokenIds, ..hidden(0, ValueType::i32(Rows::TOKENS, 1), 4) };
    let rows = build.call(Op::Embed, &[ids], &[&table], None);
    build.scales = vec![3.0];
    let x = hidden(0, ValueType::f32(Rows::TOKENS, 3), 0);
    let normed = build.call(Op::RmsNorm { eps: 0.0 }, &[x], &[&norm], None);
    let id = build.finish(&[rows[0], normed[0]]);
    let segments = [Segment { slot: 0, first_row: 0, rows: 4, position: 0, first_page: 0 }];
    let step = StepInputs {
        token_ids: &[3, 0, 1, 2],
        segments: &segments,
        pages: &[],
        hidden: HiddenRows::Given(&[5.0, 5.0, 5.0]),
        ..Default::default()
    };
    let outputs = run(&mut backend, id, &step);
    let (got, norms) = (&outputs[0], &outputs[1][..3]);
    assert_eq!(*got, [5.0, 5.5, 6.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 3.5, 4.0, 4.5]);
    assert_eq!(norms, [3.0, 3.0, 3.0]);
}

const DIMS: SsmDims = SsmDims { heads: 6, head_dim: 20, state: 12, groups: 3, taps: 4 };
const TOKENS: usize = 75;

fn mixer_caches(backend: &mut CpuBackend, state_elem: StateElem) {
    let layout = CacheLayout {
        state_layers: vec![DIMS],
        state_elem,
        slots: 2,
        rollback: Rollback::OneChunk,
        ..Default::default()
    };
    backend.create_caches(&layout).unwrap();
}

fn mixer_weights() -> Vec<CaseWeight> {
    let case = ops::cases(OpKind::SsmStep)
        .into_iter()
        .find(|c| matches!(c.op, Op::SsmStep { dims, .. } if dims == DIMS));
    case.expect("the contract has these sizes").weights
}

fn mixer_programs(backend: &mut CpuBackend) -> (ProgramId, ProgramId) {
    let w = mixer_weights();
    let stride = DIMS.in_proj() * 4;
    let part = |start: usize, cols: usize| hidden(start * 4, ValueType::f32(Rows::TOKENS, cols), stride);
    let mut build = Builder::new(backend, Phase::Prefill, TOKENS);
    let (inner, conv) = (DIMS.inner(), DIMS.conv_dim());
    let xbc = build.call(Op::SsmConv(DIMS), &[part(inner, conv)], &[&w[0], &w[1]], Some(0))[0];
    let dt = build.call(Op::SsmDt, &[part(inner + conv, DIMS.heads)], &[&w[2]], None)[0];
    let y = build.call(Op::SsmScan(DIMS), &[xbc, dt], &[&w[3], &w[4]], Some(0))[0];
    let norm = Op::GatedGroupNorm { groups: DIMS.groups, eps: 1e-5 };
    let out = build.call(norm, &[y, part(0, inner)], &[&w[5]], None);
    let parts = build.finish(&out);
    let mut build = Builder::new(backend, Phase::Decode, 1);
    let all: Vec<&CaseWeight> = w.iter().collect();
    let out = build.call(Op::SsmStep { dims: DIMS, eps: 1e-5 }, &[part(0, DIMS.in_proj())], &all, Some(0));
    (parts, build.finish(&out))
}

fn step_mixer(backend: &mut CpuBackend, id: ProgramId, slot: u32, position: usize, rows: &[f32]) -> Vec<u32> {
    let count = rows.len() / DIMS.in_proj();
    let ids = vec![0; count];
    let position = position as u32;
    let segments = [Segment { slot, first_row: 0, rows: count as u32, position, first_page: 0 }];
    let hidden = HiddenRows::Given(rows);
    let step = StepInputs { token_ids: &ids, segments: &segments, hidden, ..Default::default() };
    run(backend, id, &step)[0].iter().map(|v| v.to_bits()).collect()
}

#[test]
fn the_fused_step_matches_its_parts_and_slots_can_be_restored() {
    let width = DIMS.in_proj();
    let x = Rng(3).normals(TOKENS * width, 1.0);
    // Five threads split the three groups.
    let cases =
        |isa| StateElem::ALL.into_iter().flat_map(move |elem| [2, 5].map(|threads| (isa, elem, threads)));
    for (isa, elem, threads) in Isa::available().into_iter().flat_map(cases) {
        let mut backend = backend(isa, threads);
        mixer_caches(&mut backend, elem);
        let (parts, fused) = mixer_programs(&mut backend);
        let want = step_mixer(&mut backend, parts, 0, 0, &x);
        let mut got = step_mixer(&mut backend, parts, 1, 0, &x[..9 * width]);
        for t in 9..TOKENS {
            if t == 40 {
                let (cell, mut snapshot) = (Cell::Slot { slot: 1, position: 40 }, Vec::new());
                backend.read_cell(cell, &mut snapshot).unwrap();
                mixer_caches(&mut backend, elem);
                backend.import_cell(cell, &snapshot).unwrap();
            }
            got.extend(step_mixer(&mut backend, fused, 1, t, &x[t * width..(t + 1) * width]));
        }
        assert!(got == want, "{isa} x{threads}, {}: the fused step differs", elem.name());
        // Roll back twenty tokens and continue: the slot keeps the previous chunk.
        let again = step_mixer(&mut backend, parts, 1, TOKENS - 20, &x[(TOKENS - 20) * width..]);
        assert!(
            again == want[(TOKENS - 20) * DIMS.inner()..],
            "{isa} x{threads}, {}: rolling back differs",
            elem.name()
        );
    }
}

/// Runs rows of `[q | k | v]` from a position on, in pages first restored from `restore`; returns outputs and pages.
fn attend(
    backend: &mut dyn Backend,
    case: &Case,
    (rows, position): (&[f32], u32),
    pages: &[u32],
    restore: &[Vec<u8>],
) -> (Vec<f32>, Vec<Vec<u8>>) {
    let Op::Attention(Attention { dims, .. }) = case.op else { unreachable!("a case of attention") };
    let (q, kv) = (dims.q_heads * dims.head_dim, dims.kv_heads * dims.head_dim);
    let stride = (q + 2 * kv) * 4;
    let part = |start: usize, cols: usize| hidden(start * 4, ValueType::f32(Rows::TOKENS, cols), stride);
    let layout = case.caches(4);
    let group = layout.kv_group(case.layer()) as u32;
    backend.create_caches(&layout).unwrap();
    for (page, bytes) in pages.iter().zip(restore) {
        backend.import_cell(Cell::Page { group, page: *page }, bytes).unwrap();
    }
    let count = rows.len() * 4 / stride;
    let kernel = backend.kernels().iter().position(|k| k.op == OpKind::Attention).unwrap();
    let form = backend.kernels()[kernel].weight_form;
    let sinks = case.weights.first().map(|sinks| {
        let key = WeightKey { name: "sinks".into(), usage: WeightUse::Vector, form };
        backend.load_weight(&key, &Source(sinks, &[1.0])).unwrap();
        key
    });
    let ty = ValueType::f32(Rows::TOKENS, q);
    let output = Operand { place: Place::Arena(0), ..hidden(0, ty, q * 4) };
    let call = Call {
        op: case.op,
        kernel,
        label: "attend".into(),
        inputs: vec![part(0, q), part(q, kv), part(q + kv, kv)],
        outputs: vec![output],
        rounded: None,
        weights: sinks.iter().map(|_| 0).collect(),
        cache: Some(case.layer()),
        after: Vec::new(),
    };
    let program = Program {
        name: "attend".into(),
        phase: Phase::Prefill,
        max_tokens: count,
        max_wanted: 0,
        calls: vec![call],
        weights: sinks.into_iter().collect(),
        outputs: vec![Output { name: "y".into(), operand: output }],
        arena_bytes: count * q * 4,
        unpooled_bytes: 0,
    };
    let id = backend.compile(program).unwrap();
    let ids = vec![0; count];
    let segments = [Segment { slot: 0, first_row: 0, rows: count as u32, position, first_page: 0 }];
    let hidden = HiddenRows::Given(rows);
    let lists = pages.repeat(layout.kv_groups.len());
    let step =
        StepInputs { token_ids: &ids, segments: &segments, pages: &lists, hidden, ..Default::default() };
    let out = run(backend, id, &step).remove(0);
    let mut exported = |page: u32| {
        let mut bytes = Vec::new();
        backend.read_cell(Cell::Page { group, page }, &mut bytes).unwrap();
        bytes
    };
    (out, pages.iter().map(|&page| exported(page)).collect())
}

#[test]
fn pages_can_be_restored_and_match_the_contract() {
    for case in ops::cases(OpKind::Attention) {
        let Op::Attention(Attention { dims, .. }) = case.op else { unreachable!() };
        let width = (dims.q_heads + 2 * dims.kv_heads) * dims.head_dim;
        let x = Rng(4).normals(50 * width, 1.0);
        let cpu = || backend(Isa::detect(), 2);
        let (want, _) = attend(&mut cpu(), &case, (&x, 0), &[2, 0], &[]);
        let (_, snapshot) = attend(&mut cpu(), &case, (&x[..40 * width], 0), &[1, 3], &[]);
        let (got, pages) = attend(&mut cpu(), &case, (&x[40 * width..], 40), &[3, 2], &snapshot);
        assert_eq!(got, want[40 * dims.q_heads * dims.head_dim..], "{}", case.name);
        // The reference backend stores the same bytes, and can continue from this backend's.
        let mut reference = ReferenceBackend::new();
        let (_, other) = attend(&mut reference, &case, (&x[..40 * width], 0), &[1, 3], &[]);
        assert!(other == snapshot, "{}: bytes differ from the reference", case.name);
        let (_, other) = attend(&mut reference, &case, (&x[40 * width..], 40), &[3, 2], &snapshot);
        assert!(other == pages, "{}: bytes differ after a snapshot", case.name);
    }
}
