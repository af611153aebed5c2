//! What each call must move and compute at the least, from the program alone.
//!
//! Bytes count every weight, activation, key, value and state once per call; caches a kernel may hit are
//! not subtracted. Times are measured elsewhere.

use std::iter::Sum;
use std::ops::Add;

use mambo_kernel::{
    AttentionDims, Call, Elem, KvTypes, Op, Operand, Program, Q8_BLOCK, Q8_BLOCK_BYTES, SSM_CHUNK, SsmDims,
    StateElem, WeightKey,
};

/// The step a cost is asked for.
#[derive(Clone, Copy)]
pub struct CostContext<'a> {
    /// Tokens in the step.
    pub tokens: usize,
    /// Rows whose logits are wanted.
    pub wanted: usize,
    /// Sequences in the step; the tokens are spread evenly over them.
    pub segments: usize,
    /// Positions each sequence already holds.
    pub depth: usize,
    /// Element types of cached keys and values.
    pub kv_types: KvTypes,
    /// Element type of recurrent states.
    pub state_elem: StateElem,
    /// Bytes of a weight, in the file or as a backend holds it.
    pub weight_bytes: &'a dyn Fn(&WeightKey) -> u64,
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

/// The cost of every call, in call order.
pub fn program_cost(program: &Program, context: &CostContext) -> Vec<CallCost> {
    program.calls.iter().map(|call| call_cost(program, call, context)).collect()
}

/// The cost of one call.
pub fn call_cost(program: &Program, call: &Call, context: &CostContext) -> CallCost {
    let activations: f64 = call.inputs.iter().chain(&call.outputs).map(|o| operand_bytes(o, context)).sum();
    let bytes = activations + weight_bytes(program, call, context) + cache_bytes(call, context);
    CallCost { bytes: bytes.round() as u64, flops: flops(call, context).round() as u64 }
}

fn rows(operand: &Operand, context: &CostContext) -> f64 {
    operand.rows.count(context.tokens, context.wanted) as f64
}

fn operand_bytes(operand: &Operand, context: &CostContext) -> f64 {
    let bytes_per_value = match operand.elem {
        Elem::F32 | Elem::I32 => 4.0,
        Elem::Q8 => Q8_BLOCK_BYTES as f64 / Q8_BLOCK as f64,
        Elem::BF16X2 => 4.0,
    };
    rows(operand, context) * operand.cols as f64 * bytes_per_value
}

/// Expected number of different experts that `tokens` independent choices of `top_k` meet.
fn distinct_experts(experts: usize, top_k: usize, tokens: usize) -> f64 {
    let experts = experts as f64;
    experts * (1.0 - (1.0 - top_k as f64 / experts).powf(tokens as f64))
}

fn weight_bytes(program: &Program, call: &Call, context: &CostContext) -> f64 {
    let stored = call.weights.iter().map(|w| (context.weight_bytes)(&program.weights[*w]) as f64);
    let stored: f64 = stored.sum();
    match call.op {
        // A lookup reads one row per token, at most four bytes per element of it.
        Op::Embed => stored.min(operand_bytes(&call.outputs[0], context)),
        Op::MoeMatmul { experts, top_k, .. } => {
            stored * distinct_experts(experts, top_k, context.tokens) / experts as f64
        }
        _ => stored,
    }
}

/// Tokens of one sequence in the step.
fn tokens_per_segment(context: &CostContext) -> f64 {
    context.tokens as f64 / context.segments.max(1) as f64
}

fn cache_bytes(call: &Call, context: &CostContext) -> f64 {
    let per_segment = match &call.op {
        Op::Attention(a) => {
            let token = context.kv_types.token_bytes(a) as f64;
            // Old keys and values are read, new ones written.
            token * (context.depth as f64 + tokens_per_segment(context))
        }
        Op::SsmConv(d) => conv_bytes(d, context),
        Op::SsmScan(d) => scan_bytes(d, context),
        Op::SsmStep { dims, .. } => conv_bytes(dims, context) + scan_bytes(dims, context),
        _ => 0.0,
    };
    per_segment * context.segments as f64
}

/// The columns before the segment are read, the last ones of it written to the ring.
fn conv_bytes(d: &SsmDims, context: &CostContext) -> f64 {
    let history = (d.taps - 1) as f64;
    (history + tokens_per_segment(context).min(history)) * (d.conv_dim() * 4) as f64
}

/// The state is read once and written when a chunk ends; a short segment finds half a ring before it.
fn scan_bytes(d: &SsmDims, context: &CostContext) -> f64 {
    let tokens = tokens_per_segment(context);
    let chunk = SSM_CHUNK as f64;
    let state = (d.heads * d.state * d.head_dim * context.state_elem.bytes()) as f64;
    let ring_row = ((d.inner() + d.group_state() + d.heads) * 4) as f64;
    let read = if tokens < chunk { chunk / 2.0 } else { 0.0 };
    state * (1.0 + (tokens / chunk).min(1.0)) + ring_row * (read + tokens.min(chunk))
}

fn flops(call: &Call, context: &CostContext) -> f64 {
    let Some(output) = call.outputs.first() else { return 0.0 };
    let out_rows = rows(output, context);
    let elements = out_rows * output.cols as f64;
    let in_cols = call.inputs.first().map_or(0, |i| i.cols) as f64;
    match &call.op {
        Op::Matmul { .. } | Op::MoeMatmul { .. } => 2.0 * elements * in_cols,
        Op::Attention(a) => out_rows * attention_flops(a, context),
        Op::SsmConv(d) => out_rows * conv_flops(d),
        Op::SsmScan(d) => out_rows * scan_flops(d),
        Op::SsmStep { dims, .. } => {
            out_rows * (conv_flops(dims) + scan_flops(dims)) + elements * NORM_FLOPS * 2.0
        }
        Op::MoeCombine { top_k, .. } => elements * (2 * top_k) as f64,
        Op::RmsNorm { .. } => elements * NORM_FLOPS,
        Op::GatedGroupNorm { .. } => elements * NORM_FLOPS * 2.0,
        Op::MoeRoute(r) => out_rows * (r.experts * 4) as f64,
        Op::Add | Op::Relu2 | Op::SsmDt | Op::Quantize(_) => elements * 2.0,
        Op::Embed | Op::Split { .. } | Op::Concat | Op::GatherRows => 0.0,
    }
}

/// Square, sum, scale, weight.
const NORM_FLOPS: f64 = 4.0;

fn attention_flops(a: &AttentionDims, context: &CostContext) -> f64 {
    let keys = context.depth as f64 + (tokens_per_segment(context) + 1.0) / 2.0;
    4.0 * (a.q_heads * a.head_dim) as f64 * keys
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
