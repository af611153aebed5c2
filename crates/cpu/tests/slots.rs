//! Recurrent ops that have no fused step: whole prompts, single tokens, snapshots and rollback give the same bits.

mod build;

use std::ops::Range;

use build::{Builder, backend, hidden, run};
use mambo_cpu::{CpuBackend, Isa};
use mambo_kernel::case::{Case, CaseWeight, Rng};
use mambo_kernel::{
    Backend, CacheLayout, Cell, HiddenRows, OpKind, Phase, ProgramId, Rollback, Rows, Segment, StateElem,
    StepInputs, ValueType, ops,
};

const TOKENS: usize = 75;

/// An op over rows that hold all its inputs side by side.
struct Layer<'a> {
    case: &'a Case,
    elem: StateElem,
    width: usize,
    backend: CpuBackend,
}

impl Layer<'_> {
    fn create_caches(&mut self) {
        let layout = CacheLayout {
            state_elem: self.elem,
            rollback: Rollback::OneChunk,
            slots: 2,
            ..self.case.caches(0)
        };
        self.backend.create_caches(&layout).unwrap();
    }

    fn program(&mut self, phase: Phase, tokens: usize) -> ProgramId {
        let (case, width) = (self.case, self.width);
        let mut start = 0;
        let inputs = case.inputs.iter().map(|input| {
            let cols = input.ty.cols;
            start += cols;
            hidden((start - cols) * 4, ValueType::f32(Rows::TOKENS, cols), width * 4)
        });
        let inputs: Vec<_> = inputs.collect();
        let weights: Vec<&CaseWeight> = case.weights.iter().collect();
        let mut build = Builder::new(&mut self.backend, phase, tokens);
        let outputs = build.call(case.op, &inputs, &weights, Some(0));
        build.finish(&outputs)
    }

    fn step(&mut self, id: ProgramId, slot: u32, positions: Range<usize>, x: &[f32]) -> Vec<u32> {
        let ids = vec![0; positions.len()];
        let (rows, position) = (positions.len() as u32, positions.start as u32);
        let segments = [Segment { slot, first_row: 0, rows, position, first_page: 0 }];
        let hidden = HiddenRows::Given(&x[positions.start * self.width..positions.end * self.width]);
        let step = StepInputs { token_ids: &ids, segments: &segments, hidden, ..Default::default() };
        run(&mut self.backend, id, &step)[0].iter().map(|v| v.to_bits()).collect()
    }
}

#[test]
fn prompts_steps_snapshots_and_rollback_give_the_same_bits() {
    for case in [OpKind::ShortConv, OpKind::DeltaScan].into_iter().flat_map(ops::cases) {
        let width = case.inputs.iter().map(|input| input.ty.cols).sum();
        let x = Rng(5).normals(TOKENS * width, 1.0);
        for isa in Isa::available() {
            for (elem, threads) in StateElem::ALL.into_iter().zip([1, 2, 5]) {
                let mut layer = Layer { case: &case, elem, width, backend: backend(isa, threads) };
                layer.create_caches();
                let prompt = layer.program(Phase::Prefill, TOKENS);
                let single = layer.program(Phase::Decode, 1);
                let want = layer.step(prompt, 0, 0..TOKENS, &x);
                let mut got = layer.step(prompt, 1, 0..9, &x);
                for t in 9..TOKENS {
                    if t == 40 {
                        let (cell, mut snapshot) = (Cell::Slot { slot: 1, position: 40 }, Vec::new());
                        layer.backend.read_cell(cell, &mut snapshot).unwrap();
                        layer.create_caches();
                        layer.backend.import_cell(cell, &snapshot).unwrap();
                    }
                    got.extend(layer.step(single, 1, t..t + 1, &x));
                }
                let name = format!("{} with {isa} x{threads}, {} states", case.name, elem.name());
                assert!(got == want, "{name}: single tokens differ");
                // Roll back twenty tokens and continue: the slot keeps the previous chunk.
                let again = layer.step(prompt, 1, TOKENS - 20..TOKENS, &x);
                let cols = want.len() / TOKENS;
                assert!(again == want[(TOKENS - 20) * cols..], "{name}: rolling back differs");
            }
        }
    }
}
