//! A program or step that violates what kernels rely on is rejected before a kernel runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mambo_cpu::{CpuBackend, CpuOptions};
use mambo_kernel::{
    Attention, AttentionDims, Backend, CacheLayout, Call, Elem, HiddenRows, KvGroup, NO_PAGE, Op, OpKind,
    Operand, Phase, Place, Program, ProgramId, Rows, Segment, StepInputs,
};

const DIMS: AttentionDims = AttentionDims { q_heads: 2, kv_heads: 1, head_dim: 16 };
const TOKENS: usize = 40;

fn operand(place: Place, cols: usize) -> Operand {
    Operand { place, elem: Elem::F32, rows: Rows::TOKENS, cols, stride_bytes: cols * 4 }
}

/// Attention whose queries, keys and values are the hidden rows; `change` breaks the program.
fn compile(change: impl FnOnce(&mut Program)) -> (CpuBackend, ProgramId) {
    compile_on(None, change)
}

/// The same on caches that hold a window.
fn compile_on(window: Option<usize>, change: impl FnOnce(&mut Program)) -> (CpuBackend, ProgramId) {
    let mut backend = CpuBackend::new(CpuOptions { threads: 1, ..CpuOptions::default() }).unwrap();
    let kv_groups = vec![KvGroup { window, layers: vec![0], pages: 4 }];
    let layout = CacheLayout { kv_layers: vec![DIMS], kv_groups, slots: 2, ..Default::default() };
    backend.create_caches(&layout).unwrap();
    let kernel = backend.kernels().iter().position(|row| row.op == OpKind::Attention).unwrap();
    let mut program = Program {
        name: "test".into(),
        phase: Phase::Prefill,
        max_tokens: TOKENS,
        max_wanted: TOKENS,
        calls: vec![Call {
            op: Op::Attention(Attention::plain(DIMS)),
            kernel,
            label: "attention".into(),
            inputs: vec![
                operand(Place::Hidden(0), 32),
                operand(Place::Hidden(0), 16),
                operand(Place::Hidden(0), 16),
            ],
            outputs: vec![operand(Place::Arena(0), 32)],
            rounded: None,
            weights: Vec::new(),
            cache: Some(0),
            after: Vec::new(),
        }],
        weights: Vec::new(),
        outputs: Vec::new(),
        arena_bytes: TOKENS * 128,
        unpooled_bytes: TOKENS * 128,
    };
    change(&mut program);
    let id = backend.compile(program).unwrap();
    (backend, id)
}

fn message(what: impl FnOnce()) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(what)) else { return "no panic".into() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
}

/// Two sequences: 33 rows from the start of the first, 2 rows across a page boundary of the second.
const SEGMENTS: [Segment; 2] = [
    Segment { slot: 0, first_row: 0, rows: 33, position: 0, first_page: 0 },
    Segment { slot: 1, first_row: 33, rows: 2, position: 30, first_page: 2 },
];

fn run(segments: &[Segment], pages: &[u32], wanted: &[u32], hidden: usize) -> String {
    let (mut backend, id) = compile(|_| {});
    let hidden = vec![0.5; hidden];
    let tokens = [0; 35];
    let hidden = HiddenRows::Given(&hidden);
    let step = StepInputs { token_ids: &tokens, segments, pages, wanted, hidden, ..Default::default() };
    message(|| {
        let _ = backend.submit(id, &step).unwrap();
    })
}

#[test]
fn invalid_steps_are_rejected() {
    let hidden = 35 * 32;
    let [first, second] = SEGMENTS;
    let case = |segments: &[Segment], pages: &[u32], wanted: &[u32], hidden, want: &str| {
        let got = run(segments, pages, wanted, hidden);
        assert!(got.contains(want), "{want:?}, got {got:?}");
    };
    case(&SEGMENTS, &[0, 1, 2], &[34], hidden, "no panic");
    case(&SEGMENTS, &[0, 1, 2], &[35], hidden, "wanted row");
    case(&SEGMENTS, &[0, 1, 2], &[], hidden - 1, "hidden rows");
    case(&SEGMENTS, &[0, 4, 2], &[], hidden, "page 4 does not exist");
    case(&SEGMENTS, &[0, 1, 1], &[], hidden, "page 1 is written twice");
    case(&SEGMENTS, &[0, 1], &[], hidden, "does not cover its segment");
    case(&[second, first], &[0, 1, 2], &[], hidden, "cover the rows");
    case(&[first], &[0, 1, 2], &[], hidden, "cover the rows");
    let later = Segment { position: 32, ..second };
    case(&[first, later], &[0, 1, 0, 2], &[], hidden, "page 0 is read and written");
    case(&[first, Segment { position: u32::MAX, ..second }], &[0, 1, 2], &[], hidden, "beyond counting");
}

#[test]
fn invalid_programs_are_rejected() {
    let case = |change: fn(&mut Program), want: &str| {
        let got = message(|| drop(compile(change)));
        assert!(got.contains(want), "{want:?}, got {got:?}");
    };
    case(|_| {}, "no panic");
    case(|p| p.arena_bytes -= 4, "beyond the arena");
    case(|p| p.calls[0].inputs[1].elem = Elem::I32, "input");
    case(|p| p.calls[0].inputs[2].cols = 12, "attention");
    case(|p| p.calls[0].outputs[0].stride_bytes = 64, "overlap");
    case(|p| p.calls[0].inputs[0].place = Place::Arena(0), "touches");
    case(|p| p.calls[0].outputs[0].place = Place::Hidden(0), "not in the arena");
    case(|p| p.calls[0].kernel = 0, "bound to kernel");
    // A second call on the same cache and memory, which nothing orders after the first.
    case(|p| p.calls.push(p.calls[0].clone()), "not ordered");
    case(|p| p.calls.push(Call { after: vec![0], ..p.calls[0].clone() }), "no panic");
    case(|p| p.calls[0].after = vec![0], "not ordered");
}

#[test]
fn pages_before_a_window_need_not_be_there() {
    let run = |window: Option<usize>, pages: &[u32]| {
        let (mut backend, id) = compile_on(Some(20), |program| {
            program.calls[0].op = Op::Attention(Attention { window, ..Attention::plain(DIMS) });
        });
        let segments = [Segment { slot: 0, first_row: 0, rows: 2, position: 64, first_page: 0 }];
        let hidden = HiddenRows::Given(&[0.5; 64]);
        let step =
            StepInputs { token_ids: &[0; 2], segments: &segments, pages, hidden, ..Default::default() };
        message(|| {
            let _ = backend.submit(id, &step).unwrap();
        })
    };
    // Position 64 sees from 45 on, which is in the second page.
    assert_eq!(run(Some(20), &[NO_PAGE, 1, 2]), "no panic");
    assert_eq!(run(Some(7), &[NO_PAGE, 1, 2]), "no panic");
    assert!(run(Some(20), &[0, NO_PAGE, 2]).contains("does not exist"));
    assert!(run(Some(21), &[0, 1, 2]).contains("more than its group's window"));
    assert!(run(None, &[0, 1, 2]).contains("more than its group's window"));
}
