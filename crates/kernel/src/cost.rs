//! What each call must move and compute at the least, from the program alone.
//!
//! Bytes count every weight, activation, key, value and state once per call; caches a kernel may hit are
//! not subtracted. Times are measured elsewhere.

use std::iter::Sum;
use std::ops::Add;

use crate::backend::CacheTypes;
use crate::cache::SSM_CHUNK;
use crate::dims::{Attention, SsmDims};
use crate::op::Op;
use crate::program::{Call, Operand, Program, WeightKey};
use crate::step::StepInputs;
use crate::value::{RowBase, Rows};

/// The size of a step, as far as costs depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepShape {
    /// Tokens in the step.
    pub tokens: usize,
    /// Rows whose logits are wanted.
    pub wanted: usize,
    /// Sequences in the step; the tokens are spread evenly over them.
    pub segments: usize,
    /// Positions each sequence already holds.
    pub depth: usize,
}

impl StepShape {
    /// The shape of a step whose sequences are of average length, each weighted by its rows.
    pub fn of(step: &StepInputs) -> StepShape {
        let tokens = step.token_ids.len();
        let held: usize = step.segments.iter().map(|s| s.rows as usize * s.position as usize).sum();
        StepShape {
            tokens,
            wanted: step.wanted.len(),
            segments: step.segments.len(),
            depth: held / tokens.max(1),
        }
    }

    fn tokens_per_segment(&self) -> f64 {
        self.tokens as f64 / self.segments.max(1) as f64
    }

    fn rows(&self, rows: Rows) -> f64 {
        rows.count(self.tokens, self.wanted) as f64
    }
}

/// Least work of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCost {
    /// Bytes read and written.
    pub bytes: u64,
    /// Floating-point operations; a multiply-add counts two.
    pub flops: u64,
}

impl Add for CallCost {
    type Output = CallCost;

    fn add(self, other: CallCost) -> CallCost {
        CallCost { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

impl Sum for CallCost {
    fn sum<I: Iterator<Item = CallCost>>(costs: I) -> CallCost {
        costs.fold(CallCost::default(), Add::add)
    }
}

/// The cost of every call of a program, in call order; `weight_bytes` are those of a weight, in the file or as a
/// backend holds it.
pub fn program_cost(
    program: &Program,
    shape: &StepShape,
    caches: CacheTypes,
    weight_bytes: &dyn Fn(&WeightKey) -> u64,
) -> Vec<CallCost> {
    let bytes = |call: &Call| call.weights.iter().map(|w| weight_bytes(&program.weights[*w])).sum();
    program.calls.iter().map(|call| CallWork::of(call, bytes(call), caches).cost(shape)).collect()
}

/// What a call has to do, as a function of the step's shape.
#[derive(Clone, Copy, Debug)]
pub struct CallWork {
    op: Op,
    /// Bytes of activations for each token, and for each wanted row.
    token_bytes: f64,
    wanted_bytes: f64,
    /// Bytes of all its weights.
    weights: f64,
    out_rows: Rows,
    out_cols: f64,
    in_cols: f64,
    caches: CacheTypes,
}

impl CallWork {
    /// The work of a call whose weights have so many bytes.
    pub fn of(call: &Call, weight_bytes: u64, caches: CacheTypes) -> CallWork {
        let operands = || call.inputs.iter().chain(&call.outputs).chain(&call.rounded);
        let bytes = |base: RowBase| -> f64 {
            let own = operands().filter(|operand| operand.rows.base == base);
            own.map(|operand| (operand.rows.times * operand.elem.packed_bytes(operand.cols)) as f64).sum()
        };
        let cols = |operands: &[Operand]| operands.first().map_or(0.0, |operand| operand.cols as f64);
        CallWork {
            op: call.op,
            token_bytes: bytes(RowBase::Tokens),
            wanted_bytes: bytes(RowBase::Wanted),
            weights: weight_bytes as f64,
            out_rows: call.outputs.first().map_or(Rows::TOKENS, |output| output.rows),
            out_cols: cols(&call.outputs),
            in_cols: cols(&call.inputs),
            caches,
        }
    }

    /// The least work in a step of this shape.
    pub fn cost(&self, shape: &StepShape) -> CallCost {
        let activations = shape.tokens as f64 * self.token_bytes + shape.wanted as f64 * self.wanted_bytes;
        let bytes = activations + self.streamed_bytes(shape);
        CallCost { bytes: bytes.round() as u64, flops: self.flops(shape).round() as u64 }
    }

    /// Bytes of weights and caches alone: what comes from memory whatever the size of the processor's caches.
    pub fn streamed_bytes(&self, shape: &StepShape) -> f64 {
        self.weight_bytes(shape) + self.cache_bytes(shape)
    }

    fn weight_bytes(&self, shape: &StepShape) -> f64 {
        match self.op {
            // A lookup reads one row per token, at most four bytes per element of it.
            Op::Embed => self.weights.min(shape.rows(self.out_rows) * self.out_cols * 4.0),
            Op::MoeMatmul { experts, top_k, .. } => {
                self.weights * distinct_experts(experts, top_k, shape.tokens) / experts as f64
            }
            _ => self.weights,
        }
    }

    fn cache_bytes(&self, shape: &StepShape) -> f64 {
        let per_segment = match &self.op {
            // Old keys and values are read, new ones written.
            Op::Attention(a) => {
                let tokens = shape.tokens_per_segment();
                self.caches.kv.token_bytes(&a.dims) as f64 * (seen(a, shape.depth as f64) + tokens)
            }
            Op::SsmConv(d) | Op::ShortConv(d) => conv_bytes(d, shape),
            Op::SsmScan(d) | Op::DeltaScan(d) => self.scan_bytes(d, shape),
            Op::SsmStep { dims, .. } => conv_bytes(dims, shape) + self.scan_bytes(dims, shape),
            _ => 0.0,
        };
        per_segment * shape.segments as f64
    }

    /// The state is read once and written when a chunk ends; before a short segment the ring is half full on average.
    fn scan_bytes(&self, d: &SsmDims, shape: &StepShape) -> f64 {
        let (tokens, chunk) = (shape.tokens_per_segment(), SSM_CHUNK as f64);
        let state = (d.heads * d.state * d.head_dim * self.caches.state.bytes()) as f64;
        let ring_row = ((d.inner() + d.group_state() + d.heads) * 4) as f64;
        let read = if tokens < chunk { chunk / 2.0 } else { 0.0 };
        state * (1.0 + (tokens / chunk).min(1.0)) + ring_row * (read + tokens.min(chunk))
    }

    /// Floating-point operations.
    pub fn flops(&self, shape: &StepShape) -> f64 {
        let out_rows = shape.rows(self.out_rows);
        let elements = out_rows * self.out_cols;
        match &self.op {
            Op::Matmul { epilogue, .. } | Op::MoeMatmul { epilogue, .. } => {
                2.0 * elements * self.in_cols * epilogue.products().count() as f64
            }
            Op::Attention(a) => out_rows * attention_flops(a, shape),
            Op::SsmConv(d) => out_rows * conv_flops(d),
            Op::SsmScan(d) => out_rows * scan_flops(d),
            // The state and the ring are read for k as well as for q.
            Op::DeltaScan(d) => out_rows * 2.0 * scan_flops(d),
            Op::ShortConv(d) => out_rows * conv_flops(d),
            Op::SsmStep { dims, .. } => {
                out_rows * (conv_flops(dims) + scan_flops(dims)) + elements * NORM_FLOPS * 2.0
            }
            Op::MoeCombine { top_k, .. } => elements * (2 * top_k) as f64,
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::HeadNorm { .. } => elements * NORM_FLOPS,
            Op::Rope(_) => elements * 3.0,
            Op::Glu(_) | Op::SoftCap { .. } => elements * 4.0,
            Op::GatedGroupNorm { .. } => elements * NORM_FLOPS * 2.0,
            Op::MoeRoute(r) => out_rows * (r.experts * 4) as f64,
            Op::Choose => out_rows * self.in_cols,
            Op::Add | Op::Bias | Op::MoeBias { .. } | Op::Relu2 | Op::SsmDt | Op::Quantize(_) => {
                elements * 2.0
            }
            Op::Embed | Op::Split { .. } | Op::Concat | Op::GatherRows => 0.0,
        }
    }
}

/// Expected number of distinct experts among `tokens` independent choices of `top_k`.
fn distinct_experts(experts: usize, top_k: usize, tokens: usize) -> f64 {
    let experts = experts as f64;
    experts * (1.0 - (1.0 - top_k as f64 / experts).powf(tokens as f64))
}

/// The columns before the segment are read, the last ones of it written to the ring.
fn conv_bytes(d: &SsmDims, shape: &StepShape) -> f64 {
    let history = (d.taps - 1) as f64;
    (history + shape.tokens_per_segment().min(history)) * (d.conv_dim() * 4) as f64
}

/// Square, sum, scale, weight.
const NORM_FLOPS: f64 = 4.0;

/// Of so many positions, those that a token sees.
fn seen(a: &Attention, positions: f64) -> f64 {
    a.window.map_or(positions, |window| positions.min(window as f64))
}

fn attention_flops(a: &Attention, shape: &StepShape) -> f64 {
    let keys = seen(a, shape.depth as f64 + (shape.tokens_per_segment() + 1.0) / 2.0);
    4.0 * (a.dims.q_heads * a.dims.head_dim) as f64 * keys
}

fn conv_flops(d: &SsmDims) -> f64 {
    (2 * (d.taps + 1) * d.conv_dim()) as f64
}

/// Per token: the carried state times C, its share of the hand-off, and half a chunk of pairs.
fn scan_flops(d: &SsmDims) -> f64 {
    let state = (4 * d.heads * d.head_dim * d.state) as f64;
    let pair = (2 * d.group_state() + 2 * d.inner()) as f64;
    state + pair * (SSM_CHUNK as f64 + 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_met_grow_from_top_k_to_all() {
        assert!((distinct_experts(128, 6, 1) - 6.0).abs() < 1e-9);
        assert!((distinct_experts(4, 2, 2) - 3.0).abs() < 1e-9);
        assert!(distinct_experts(128, 6, 4096) > 127.999);
    }
}
