//! Consecutive calls of a program that small steps run as fewer launches, with the same bits. A fusion writes what the
//! calls outside of it read, and nothing else of what its calls would have left.

use mambo_kernel::{BackendError, Call, Operand, Place, Program, RowBase};

use crate::kernels::binding::Binding;
use crate::kernels::{experts, gated_matmul, normed_matmul, sorted_rows};
use crate::launch::Launch;

/// Launches by call of the fusion; none where the calls have to run one by one.
pub(crate) type FusedBind = fn(&[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError>;

/// How some calls are recognised, and bound together.
struct Pattern {
    calls: usize,
    is_found: fn(&[Call]) -> bool,
    /// Outputs, as (call, port), that are written all the same.
    kept: &'static [(usize, usize)],
    bind: FusedBind,
}

/// A norm and so many products.
const fn normed(products: usize, kept: &'static [(usize, usize)]) -> Pattern {
    Pattern { calls: 1 + products, is_found: normed_matmul::is_normed, kept, bind: normed_matmul::bind }
}

/// Longer ones first.
const PATTERNS: &[Pattern] = &[
    Pattern { calls: experts::CALLS, is_found: experts::is_layer, kept: experts::KEPT, bind: experts::bind },
    normed(normed_matmul::MOST_PRODUCTS, &[(1, 0), (2, 0), (3, 0)]),
    normed(2, &[(1, 0), (2, 0)]),
    Pattern { calls: 2, is_found: gated_matmul::is_gated, kept: &[], bind: gated_matmul::bind },
    normed(1, &[(1, 0)]),
    Pattern { calls: 2, is_found: sorted_rows::is_found, kept: &[], bind: sorted_rows::bind },
];

/// Calls that may run together.
pub(crate) struct Fusion {
    pub first: usize,
    pub calls: usize,
    pub bind: FusedBind,
}

/// The fusions of a program, by their first calls, longer ones first. They may overlap: which can be bound depends on the
/// rows of a step.
pub(crate) fn fusions(program: &Program) -> Vec<Fusion> {
    let found = |first: usize| {
        let fits = move |pattern: &&Pattern| {
            let calls = program.calls.get(first..first + pattern.calls);
            calls.is_some_and(|calls| {
                (pattern.is_found)(calls) && hides_only_the_unread(program, first, pattern)
            })
        };
        let fusion = move |pattern: &Pattern| Fusion { first, calls: pattern.calls, bind: pattern.bind };
        PATTERNS.iter().filter(fits).map(fusion)
    };
    (0..program.calls.len()).flat_map(found).collect()
}

/// Whether nothing outside of the calls reads what only they need.
fn hides_only_the_unread(program: &Program, first: usize, pattern: &Pattern) -> bool {
    let end = first + pattern.calls;
    program.calls[first..end].iter().enumerate().all(|(index, call)| {
        let is_last = index + 1 == pattern.calls;
        let outputs = call.outputs.iter().enumerate();
        let hidden = outputs.filter(|(port, _)| !is_last && !pattern.kept.contains(&(index, *port)));
        let hidden = hidden.map(|(_, output)| output).chain(&call.rounded);
        hidden.into_iter().all(|output| !is_read_from(program, (first + index, end), output))
    })
}

/// Whether a value that call `maker` makes is read by call `end`, by a later one, or by the caller. Memory of a value that
/// is still to be read is not written.
fn is_read_from(program: &Program, (maker, end): (usize, usize), value: &Operand) -> bool {
    for (index, call) in program.calls.iter().enumerate().skip(maker + 1) {
        if index >= end && call.inputs.iter().any(|input| overlap(program, input, value)) {
            return true;
        }
        if call.outputs.iter().chain(&call.rounded).any(|output| overlap(program, output, value)) {
            return false;
        }
    }
    program.outputs.iter().any(|output| overlap(program, &output.operand, value))
}

/// Whether two values may share bytes.
fn overlap(program: &Program, a: &Operand, b: &Operand) -> bool {
    let bytes = |operand: &Operand| {
        let Place::Arena(start) = operand.place else { return None };
        let unit = match operand.rows.base {
            RowBase::Tokens => program.max_tokens,
            RowBase::Wanted => program.max_wanted,
        };
        Some(start..start + unit * operand.rows.times * operand.stride_bytes)
    };
    match (bytes(a), bytes(b)) {
        (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
        _ => false,
    }
}
