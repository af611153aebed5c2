//! Fused ops against the ops they stand for, on the same backend and to the bit: a pass that fuses may not change a
//! model's output.

use mambo_kernel::case::{Case, CaseInput};
use mambo_kernel::{Activation, Backend, Epilogue, Op, Rows, SSM_CHUNK, SsmDims, ValueType};

use super::cut::{Cut, Pace};
use super::judge::{difference, slots};
use super::trial::{OutputRows, Setup, Trial};
use super::{PHASES, offers};

/// What the parts give together: the rows of each sequence, and its slot, where they write one.
pub(super) struct Parts {
    pub rows: Vec<Vec<f32>>,
    pub slots: Vec<Vec<f32>>,
}

/// Runs the parts of a fused op one after the other; none where the op is not fused.
pub(super) fn run_parts(backend: &mut dyn Backend, case: &Case) -> Result<Option<Parts>, String> {
    let mut runner = PartRunner { backend, case, slots: Vec::new() };
    let rows = match case.op {
        Op::SsmStep { dims, eps } => runner.mixer(dims, eps)?,
        Op::Matmul { out, epilogue: Epilogue::Relu2 } => {
            let y = runner.run(Op::Matmul { out, epilogue: Epilogue::None }, &[0], vec![runner.input(0)])?;
            runner.run(Op::Relu2, &[], vec![f32_input(Rows::TOKENS, out, y)])?
        }
        Op::Matmul { out, epilogue: Epilogue::Residual } => {
            let y = runner.run(Op::Matmul { out, epilogue: Epilogue::None }, &[0], vec![runner.input(0)])?;
            runner.run(Op::Add, &[], vec![f32_input(Rows::TOKENS, out, y), runner.input(1)])?
        }
        Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::Relu2 } => {
            let product = Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None };
            let y = runner.run(product, &[0], vec![runner.input(0), runner.input(1)])?;
            let rows = Rows { times: top_k, ..Rows::TOKENS };
            runner.run(Op::Relu2, &[], vec![f32_input(rows, out, y)])?
        }
        Op::Matmul { out, epilogue: Epilogue::Glu(activation) } => {
            let product = Op::Matmul { out, epilogue: Epilogue::None };
            runner.gated(product, activation, ValueType::f32(Rows::TOKENS, out), 1)?
        }
        Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::Glu(activation) } => {
            let product = Op::MoeMatmul { experts, top_k, out, epilogue: Epilogue::None };
            let rows = Rows { times: top_k, ..Rows::TOKENS };
            runner.gated(product, activation, ValueType::f32(rows, out), 2)?
        }
        Op::MoeCombine { top_k, residual: true } => {
            let plain = Op::MoeCombine { top_k, residual: false };
            let y = runner.run(plain, &[], vec![runner.input(0), runner.input(1)])?;
            let cols = case.inputs[2].ty.cols;
            runner.run(Op::Add, &[], vec![f32_input(Rows::TOKENS, cols, y), runner.input(2)])?
        }
        _ => return Ok(None),
    };
    Ok(Some(Parts { rows, slots: runner.slots }))
}

fn f32_input(rows: Rows, cols: usize, sequences: Vec<Vec<f32>>) -> CaseInput {
    CaseInput { ty: ValueType::f32(rows, cols), sequences }
}

struct PartRunner<'a> {
    backend: &'a mut dyn Backend,
    case: &'a Case,
    /// What the parts of a mixer left in each sequence's slot.
    slots: Vec<Vec<f32>>,
}

impl PartRunner<'_> {
    fn input(&self, port: usize) -> CaseInput {
        self.case.inputs[port].clone()
    }

    /// A product and that of its gate, both of the case's first inputs.
    fn gated(
        &mut self,
        product: Op,
        activation: Activation,
        ty: ValueType,
        inputs: usize,
    ) -> Result<Vec<Vec<f32>>, String> {
        let mut run = |weight: usize| {
            let inputs = (0..inputs).map(|port| self.input(port)).collect();
            self.run(product, &[weight], inputs)
        };
        let parts = [run(1)?, run(0)?].map(|sequences| CaseInput { ty, sequences });
        self.run(Op::Glu(activation), &[], parts.into())
    }

    /// The first output of a part, by sequence, from the row that the backend would take for it.
    fn run(&mut self, op: Op, weights: &[usize], inputs: Vec<CaseInput>) -> Result<Vec<Vec<f32>>, String> {
        let mut part = Case::new(op.kind().name(), op, &self.case.lengths, 0.0);
        (part.rollback, part.state_elem) = (self.case.rollback, self.case.state_elem);
        part.weights = weights.iter().map(|&w| self.case.weights[w].clone()).collect();
        part.inputs = inputs;
        let offers = offers(self.backend, &part);
        let chosen = PHASES.into_iter().find_map(|phase| {
            offers.iter().find(|(_, phases)| phases.contains(&phase)).map(|(kernel, _)| (*kernel, phase))
        });
        let (kernel, phase) = chosen.ok_or_else(|| format!("no row for its part {}", op.kind().name()))?;
        let setup = Setup { case: &part, kernel, phase, rounded: None, dense: false };
        let mut trial = Trial::new(self.backend, &setup).map_err(|error| error.to_string())?;
        let rows = trial.run(&part.lengths, Cut::all(Pace::largest(phase)))?;
        let left = slots(&mut trial, &part)?;
        self.keep_slots(&part, left);
        Ok(rows.into_iter().map(|mut outputs| outputs.swap_remove(0)).collect())
    }

    /// Puts what the convolution and the scan left in the slots into the order of a slot that both write.
    fn keep_slots(&mut self, part: &Case, left: Vec<Vec<f32>>) {
        match part.op {
            Op::SsmConv(_) => self.slots = left,
            Op::SsmScan(dims) => {
                let state = dims.heads * dims.state * dims.head_dim;
                for ((slot, scan), length) in self.slots.iter_mut().zip(left).zip(&part.lengths) {
                    let states = if *length < SSM_CHUNK { 0 } else { state };
                    *slot = [&scan[..states], slot, &scan[states..]].concat();
                }
            }
            _ => {}
        }
    }

    /// The four ops of a mixer, from its input projection.
    fn mixer(&mut self, dims: SsmDims, eps: f32) -> Result<Vec<Vec<f32>>, String> {
        let columns = |start: usize, len: usize| {
            let rows = |sequence: &Vec<f32>| {
                sequence.chunks(dims.in_proj()).flat_map(|row| row[start..start + len].to_vec()).collect()
            };
            let sequences = self.case.inputs[0].sequences.iter().map(rows).collect();
            f32_input(Rows::TOKENS, len, sequences)
        };
        let (inner, channels) = (dims.inner(), dims.conv_dim());
        let (z, xbc) = (columns(0, inner), columns(inner, channels));
        let dt = columns(inner + channels, dims.heads);
        let xbc = self.run(Op::SsmConv(dims), &[0, 1], vec![xbc])?;
        let dt = self.run(Op::SsmDt, &[2], vec![dt])?;
        let scanned = vec![f32_input(Rows::TOKENS, channels, xbc), f32_input(Rows::TOKENS, dims.heads, dt)];
        let y = self.run(Op::SsmScan(dims), &[3, 4], scanned)?;
        let norm = Op::GatedGroupNorm { groups: dims.groups, eps };
        self.run(norm, &[5], vec![f32_input(Rows::TOKENS, inner, y), z])
    }
}

/// Compares a fused row's outputs and slots with what the backend's own rows give for its parts.
pub(super) fn check(
    backend: &mut dyn Backend,
    case: &Case,
    rows: &[OutputRows],
    left: &[Vec<f32>],
) -> Result<(), String> {
    let Some(parts) = run_parts(backend, case)? else { return Ok(()) };
    for (s, (fused, part)) in rows.iter().zip(&parts.rows).enumerate() {
        if let Some(at) = difference(&fused[0], part) {
            let (got, want) = (fused[0][at], part.get(at).copied().unwrap_or(f32::NAN));
            return Err(format!("value {at} of sequence {s} is {got}, its parts give {want}"));
        }
    }
    for (s, (fused, part)) in left.iter().zip(&parts.slots).enumerate() {
        if let Some(at) = difference(fused, part) {
            return Err(format!("value {at} of the slot of sequence {s} is not what its parts leave"));
        }
    }
    Ok(())
}
