//! The executable plan: a flat list of kernel calls over planned memory. Backends run it.

use crate::op::{Op, WeightUse};
use crate::value::{Elem, Rows};

/// What a program is for; lowering picks kernels for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Prompt chunks, possibly mixed with decode tokens: segments of any length.
    Prefill,
    /// One token per sequence.
    Decode,
    /// Segments of up to [`crate::SSM_CHUNK`] tokens, any of whose rows may be wanted: drafts to verify, text to score.
    Verify,
}

impl Phase {
    /// The name in flags and printed plans.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Verify => "verify",
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a byte offset into the activation arena.
    Arena(usize),
    /// [`crate::StepInputs::token_ids`].
    TokenIds,
    /// [`crate::StepInputs::wanted`].
    Wanted,
    /// At a byte offset into the rows of [`crate::StepInputs::hidden`].
    Hidden(usize),
}

/// A value as a call sees it: place, type and row stride. A split is an operand with a larger stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Where the first element is.
    pub place: Place,
    /// Element type.
    pub elem: Elem,
    /// Symbolic row count.
    pub rows: Rows,
    /// Elements per row.
    pub cols: usize,
    /// Bytes from one row to the next.
    pub stride_bytes: usize,
}

/// A weight by canonical name and the form a kernel wants it in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightKey {
    /// Canonical name, such as `layers.3.in_proj`.
    pub name: String,
    /// What the op uses it as.
    pub usage: WeightUse,
    /// The kernel's [`crate::KernelRow::weight_form`].
    pub form: &'static str,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// What is computed.
    pub op: Op,
    /// Index of the kernel row in [`crate::Backend::kernels`].
    pub kernel: usize,
    /// What this call is in the model, such as `layers.3.in_proj`.
    pub label: String,
    /// Inputs, in port order.
    pub inputs: Vec<Operand>,
    /// Outputs, in port order.
    pub outputs: Vec<Operand>,
    /// Where the first output is written a second time, in a private type, for calls that read it so.
    pub rounded: Option<Operand>,
    /// Indices into [`Program::weights`], in port order.
    pub weights: Vec<usize>,
    /// Index of the cache layer (KV or state, as the op says), if it has one.
    pub cache: Option<usize>,
    /// Calls that must have ended before this one starts, ascending; those they wait for themselves are left out.
    /// Calls that are not ordered by these may overlap.
    pub after: Vec<usize>,
}

/// A value the caller may fetch.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// `token`, `logits` or `hidden`.
    pub name: String,
    /// Where it is; always in the arena.
    pub operand: Operand,
}

/// A compiled-once list of calls for up to so many rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// For messages: what it computes, such as `trunk` or `mtp`.
    pub name: String,
    /// What it is for.
    pub phase: Phase,
    /// Most tokens a step may have.
    pub max_tokens: usize,
    /// Most wanted rows a step may have.
    pub max_wanted: usize,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// The weights the calls read.
    pub weights: Vec<WeightKey>,
    /// The values to read afterwards.
    pub outputs: Vec<Output>,
    /// Bytes of arena the calls use.
    pub arena_bytes: usize,
    /// What the arena would be if no two values shared memory.
    pub unpooled_bytes: usize,
}

impl Program {
    /// The index of the output of this name.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|output| output.name == name)
    }

    /// The call that chooses tokens, if the program does.
    pub fn chooser(&self) -> Option<&Call> {
        self.calls.iter().find(|call| call.op == Op::Choose)
    }
}
