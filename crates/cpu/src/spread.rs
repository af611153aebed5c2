//! How many members a step is worth: each makes the work shorter and every meeting longer.
//!
//! With `alone` the seconds that one member needs, a step takes `alone / m + meetings · m · MEETING`, which is
//! least at `sqrt(alone / (meetings · MEETING))`. It is flat there, so that rough numbers do.

use mambo_kernel::{Call, Op, Program, Rows, Segment, StepInputs};

/// Bytes of weights, or of states, that a member streams in a second.
const STREAMED: f64 = 10e9;
/// Operations of products that a member does in a second.
const MULTIPLIED: f64 = 100e9;
/// The same of attention, which has exponentials in between.
const ATTENDED: f64 = 20e9;
/// Values of other ops that a member makes in a second.
const MADE: f64 = 1e9;
/// Seconds by which each member makes a meeting longer.
const MEETING: f64 = 0.5e-6;

/// What the calls of a program cost one member alone.
pub(crate) struct Efforts(Vec<Effort>);

/// What a call costs, in seconds.
struct Effort {
    rows: Rows,
    /// All its weights.
    weights: f64,
    /// The part of them that a row meets: an expert of many.
    part: f64,
    row: f64,
    /// A row and a position of its past.
    position: f64,
}

impl Efforts {
    /// Estimates a program's calls; `bytes` are those of a call's weights.
    pub fn of(program: &Program, bytes: impl Fn(&Call) -> usize) -> Efforts {
        Efforts(program.calls.iter().map(|call| Effort::of(call, bytes(call))).collect())
    }

    /// Members out of `most` for a step with so many meetings between calls; the few within calls do not matter.
    pub fn members(&self, step: &StepInputs, meetings: usize, most: usize) -> usize {
        let (tokens, wanted) = (step.token_ids.len(), step.wanted.len());
        let seen = |s: &Segment| s.rows as usize * (s.position as usize + s.rows as usize);
        let past: usize = step.segments.iter().map(seen).sum();
        let alone: f64 = self.0.iter().map(|effort| effort.seconds(tokens, wanted, past)).sum();
        let best = (alone / (meetings.max(1) as f64 * MEETING)).sqrt();
        (best.round() as usize).clamp(1, most)
    }
}

impl Effort {
    fn of(call: &Call, bytes: usize) -> Effort {
        let (x, out) = (&call.inputs[0], &call.outputs[0]);
        let product = 2.0 * (x.cols * out.cols) as f64 / MULTIPLIED;
        let (mut part, mut position) = (1.0, 0.0);
        let row = match call.op {
            Op::Matmul { .. } => product,
            Op::MoeMatmul { experts, .. } => {
                part = 1.0 / experts.max(1) as f64;
                product
            }
            Op::Attention(dims) => {
                position = 4.0 * (dims.q_heads * dims.head_dim) as f64 / ATTENDED;
                0.0
            }
            Op::SsmScan(dims) | Op::SsmStep { dims, .. } => {
                4.0 * (dims.inner() * dims.state) as f64 / STREAMED
            }
            _ => out.cols as f64 / MADE,
        };
        // Of a table a step reads some rows, and they are its output.
        let bytes = if call.op == Op::Embed { 0 } else { bytes };
        Effort { rows: out.rows, weights: bytes as f64 / STREAMED, part, row, position }
    }

    fn seconds(&self, tokens: usize, wanted: usize, past: usize) -> f64 {
        let rows = self.rows.count(tokens, wanted) as f64;
        self.weights * (rows * self.part).min(1.0) + rows * self.row + past as f64 * self.position
    }
}

#[cfg(test)]
mod tests {
    use mambo_kernel::{Elem, Epilogue, Operand, Phase, Place};

    use super::*;

    /// A hundred products of `width` columns and as many rows.
    fn products(width: usize) -> Efforts {
        let operand = Operand {
            place: Place::Arena(0),
            elem: Elem::F32,
            rows: Rows::TOKENS,
            cols: width,
            stride_bytes: 4 * width,
        };
        let call = Call {
            op: Op::Matmul { out: width, epilogue: Epilogue::None },
            kernel: 0,
            label: String::new(),
            inputs: vec![operand],
            outputs: vec![operand],
            weights: Vec::new(),
            cache: None,
        };
        let program = Program {
            name: String::new(),
            phase: Phase::Decode,
            max_tokens: 512,
            max_wanted: 1,
            calls: vec![call; 100],
            weights: Vec::new(),
            outputs: Vec::new(),
            arena_bytes: 0,
            unpooled_bytes: 0,
        };
        Efforts::of(&program, |_| width * width)
    }

    fn members(efforts: &Efforts, tokens: usize) -> usize {
        let ids = vec![0; tokens];
        let segments = [Segment { slot: 0, first_row: 0, rows: tokens as u32, position: 0, first_page: 0 }];
        let step = StepInputs { token_ids: &ids, segments: &segments, pages: &[], wanted: &[], hidden: &[] };
        efforts.members(&step, 100, 64)
    }

    #[test]
    fn small_steps_take_few_members_and_large_ones_all() {
        assert_eq!([32, 512, 8192].map(|width| members(&products(width), 1)), [1, 8, 64]);
        assert_eq!([32, 512, 8192].map(|width| members(&products(width), 512)), [5, 64, 64]);
    }
}
