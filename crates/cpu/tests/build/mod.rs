//! Programs for tests, built call by call.

use std::borrow::Cow;

use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_kernel::case::CaseWeight;
use mambo_kernel::{
    Backend, Call, Digest, Elem, Fetch, Op, Operand, Output, Phase, Place, Program, ProgramId, Site,
    StepInputs, StepResults, ValueType, Wait, WeightError, WeightKey, WeightPart, WeightSource,
};
use mambo_tensor::DType;

/// A weight in as many parts as it has scales.
pub struct Source<'a>(pub &'a CaseWeight, pub &'a [f32]);

impl WeightSource for Source<'_> {
    fn dtype(&self) -> DType {
        self.0.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.0.shape
    }
    fn part_count(&self) -> usize {
        self.1.len()
    }
    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError> {
        let size = self.0.bytes.len() / self.1.len();
        let row_scales = Cow::Borrowed(std::slice::from_ref(&self.1[index]));
        Ok(WeightPart { row_scales, ..WeightPart::plain(&self.0.bytes[index * size..][..size]) })
    }
    fn release(&self, _: usize) {}
    fn digest(&self) -> u64 {
        Digest::of(&self.0.bytes)
    }
}

pub fn backend(isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa: Some(isa), every_thread: true, ..CpuOptions::default() })
        .unwrap()
}

/// The kernel row for an op, and its input type.
pub fn row(backend: &CpuBackend, op: Op, phase: Phase, types: &[DType], input_cols: usize) -> (usize, Elem) {
    let inputs = [ValueType::f32(mambo_kernel::Rows::TOKENS, input_cols)];
    let site = Site { op: &op, phase, inputs: &inputs, weight_types: types, caches: Default::default() };
    let fits = |k: &mambo_kernel::KernelRow| k.op == op.kind() && (k.accepts)(&site);
    let index = backend.kernels().iter().position(fits).expect("every op has a row");
    (index, backend.kernels()[index].inputs[0])
}

/// Builds programs call by call: inputs come from the hidden rows, outputs are consecutive in the arena.
pub struct Builder<'a> {
    pub backend: &'a mut CpuBackend,
    phase: Phase,
    tokens: usize,
    pub scales: Vec<f32>,
    calls: Vec<Call>,
    weights: Vec<WeightKey>,
    arena_bytes: usize,
}

impl<'a> Builder<'a> {
    pub fn new(backend: &'a mut CpuBackend, phase: Phase, tokens: usize) -> Self {
        let (calls, weights) = (Vec::new(), Vec::new());
        Builder { backend, phase, tokens, scales: vec![1.0], calls, weights, arena_bytes: 64 }
    }

    pub fn call(
        &mut self,
        op: Op,
        inputs: &[Operand],
        weights: &[&CaseWeight],
        cache: Option<usize>,
    ) -> Vec<Operand> {
        let types: Vec<DType> = weights.iter().map(|w| w.dtype).collect();
        let (kernel, _) = row(self.backend, op, self.phase, &types, inputs[0].cols);
        let values: Vec<ValueType> =
            inputs.iter().map(|o| ValueType { elem: o.elem, rows: o.rows, cols: o.cols }).collect();
        let mut indices = Vec::new();
        for (port, weight) in op.weight_ports(&values).iter().zip(weights) {
            let name = format!("{}.{}", self.calls.len(), port.name);
            let key = WeightKey { name, usage: port.usage, form: self.backend.kernels()[kernel].weight_form };
            self.backend.load_weight(&key, &Source(weight, &self.scales)).unwrap();
            indices.push(self.weights.len());
            self.weights.push(key);
        }
        let table_cols = weights.first().map_or(0, |w| *w.shape.last().unwrap());
        let mut outputs = Vec::new();
        for ty in op.infer(&values, table_cols).unwrap() {
            let stride_bytes = ty.elem.row_bytes(ty.cols);
            let place = Place::Arena(self.arena_bytes);
            outputs.push(Operand { place, elem: ty.elem, rows: ty.rows, cols: ty.cols, stride_bytes });
            self.arena_bytes += stride_bytes * ty.rows.count(self.tokens, self.tokens);
        }
        self.calls.push(Call {
            op,
            kernel,
            label: op.kind().name().into(),
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
            rounded: None,
            weights: indices,
            cache,
            after: (0..self.calls.len()).collect(),
        });
        outputs
    }

    pub fn finish(self, outputs: &[Operand]) -> ProgramId {
        let named = outputs.iter().map(|o| Output { name: "y".into(), operand: *o }).collect();
        let program = Program {
            name: "test".into(),
            phase: self.phase,
            max_tokens: self.tokens,
            max_wanted: self.tokens,
            calls: self.calls,
            weights: self.weights,
            outputs: named,
            arena_bytes: self.arena_bytes,
            unpooled_bytes: self.arena_bytes,
        };
        self.backend.compile(program).unwrap()
    }
}

/// Runs a step and returns all rows of every output.
pub fn run(backend: &mut dyn Backend, id: ProgramId, step: &StepInputs) -> Vec<Vec<f32>> {
    let (tokens, wanted) = (step.token_ids.len(), step.wanted.len());
    let outputs = backend.program(id).outputs.iter().enumerate();
    let fetch: Vec<Fetch> = outputs
        .map(|(output, o)| Fetch { output, rows: 0..o.operand.rows.count(tokens, wanted) as u32 })
        .collect();
    let ticket = backend.submit(id, &StepInputs { fetch: &fetch, ..*step }).unwrap();
    let mut results = StepResults::default();
    assert!(backend.collect(ticket, Wait::Block, &mut results).unwrap());
    results.rows
}

pub fn hidden(offset: usize, ty: ValueType, stride_bytes: usize) -> Operand {
    Operand { place: Place::Hidden(offset), elem: ty.elem, rows: ty.rows, cols: ty.cols, stride_bytes }
}
