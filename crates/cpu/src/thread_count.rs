//! How many threads a step should use: each one more shortens the work and lengthens every barrier.
//!
//! If one thread needs `serial` seconds, n threads need `serial / n + barriers · n · BARRIER_SECONDS`, which is least
//! at `n = sqrt(serial / (barriers · BARRIER_SECONDS))`. The minimum is flat, so rough numbers do.

use mambo_kernel::{Call, Op, Program, Rows, Segment, StepInputs};

/// Bytes of weights or states that one thread streams per second.
const BYTES_PER_SECOND: f64 = 10e9;
/// Matmul operations of one thread per second.
const MATMUL_FLOPS: f64 = 100e9;
/// The same for attention, which has exponentials in between.
const ATTENTION_FLOPS: f64 = 20e9;
/// Output values of other ops that one thread writes per second.
const VALUES_PER_SECOND: f64 = 1e9;
/// Seconds that each thread adds to a barrier.
const BARRIER_SECONDS: f64 = 0.5e-6;

/// What the calls of a program cost when one thread runs them.
pub(crate) struct CallCosts(Vec<CallCost>);

/// What a call costs, in seconds.
struct CallCost {
    rows: Rows,
    /// All its weights.
    weights: f64,
    /// The fraction of them that one row uses: one expert of many.
    part: f64,
    row: f64,
    /// Per row and position of its context.
    position: f64,
}

impl CallCosts {
    /// Estimates a program's calls; `bytes` are those of a call's weights.
    pub fn of(program: &Program, bytes: impl Fn(&Call) -> usize) -> CallCosts {
        CallCosts(program.calls.iter().map(|call| CallCost::of(call, bytes(call))).collect())
    }

    /// Threads to use, at most `most`, for a step with this many barriers between calls; the few within calls do not
    /// matter.
    pub fn threads(&self, step: &StepInputs, barriers: usize, most: usize) -> usize {
        let (tokens, wanted) = (step.token_ids.len(), step.wanted.len());
        let seen = |s: &Segment| s.rows as usize * (s.position as usize + s.rows as usize);
        let row_positions: usize = step.segments.iter().map(seen).sum();
        let serial: f64 = self.0.iter().map(|cost| cost.seconds(tokens, wanted, row_positions)).sum();
        let best = (serial / (barriers.max(1) as f64 * BARRIER_SECONDS)).sqrt();
        (best.round() as usize).clamp(1, most)
    }
}

impl CallCost {
    fn of(call: &Call, bytes: usize) -> CallCost {
        let (x, out) = (&call.inputs[0], &call.outputs[0]);
        let product = 2.0 * (x.cols * out.cols) as f64 / MATMUL_FLOPS;
        let (mut part, mut position) = (1.0, 0.0);
        let row = match call.op {
            Op::Matmul { .. } => product,
            Op::MoeMatmul { experts, .. } => {
                part = 1.0 / experts.max(1) as f64;
                product
            }
            Op::Attention(dims) => {
                position = 4.0 * (dims.q_heads * dims.head_dim) as f64 / ATTENTION_FLOPS;
                0.0
            }
            Op::SsmScan(dims) | Op::SsmStep { dims, .. } => {
                4.0 * (dims.inner() * dims.state) as f64 / BYTES_PER_SECOND
            }
            _ => out.cols as f64 / VALUES_PER_SECOND,
        };
        // Of a table a step reads some rows, and they are its output.
        let bytes = if call.op == Op::Embed { 0 } else { bytes };
        CallCost { rows: out.rows, weights: bytes as f64 / BYTES_PER_SECOND, part, row, position }
    }

    fn seconds(&self, tokens: usize, wanted: usize, row_positions: usize) -> f64 {
        let rows = self.rows.count(tokens, wanted) as f64;
        self.weights * (rows * self.part).min(1.0) + rows * self.row + row_positions as f64 * self.position
    }
}

#[cfg(test)]
mod tests {
    use mambo_kernel::{Elem, Epilogue, Operand, Phase, Place};

    use super::*;

    /// A hundred products of `width` columns and as many rows.
    fn products(width: usize) -> CallCosts {
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
        CallCosts::of(&program, |_| width * width)
    }

    fn threads(costs: &CallCosts, tokens: usize) -> usize {
        let ids = vec![0; tokens];
        let segments = [Segment { slot: 0, first_row: 0, rows: tokens as u32, position: 0, first_page: 0 }];
        let step = StepInputs { token_ids: &ids, segments: &segments, pages: &[], wanted: &[], hidden: &[] };
        costs.threads(&step, 100, 64)
    }

    #[test]
    fn small_steps_take_few_threads_and_large_ones_all() {
        assert_eq!([32, 512, 8192].map(|width| threads(&products(width), 1)), [1, 8, 64]);
        assert_eq!([32, 512, 8192].map(|width| threads(&products(width), 512)), [5, 64, 64]);
    }
}
