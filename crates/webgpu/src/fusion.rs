//! Calls that are done together. In steps of a single row a norm is done by the products that read it, each for itself,
//! because a dispatch more costs more than doing it again, and several products of it are one launch; in steps of few
//! tokens a layer of experts is two launches after its router. The program stays as it is, and so do the bits.

use mambo_kernel::{Call, Op, Operand, Place, Program};

use crate::activation::I8;
use crate::kernels::few::takes_norm;
use crate::kernels::{experts, several, ssm_step};

/// What becomes of every call of a program in steps of a single row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fusion {
    /// By call: the call whose norm it does.
    pub norm_of: Vec<Option<usize>>,
    /// By call: whether its readers do its norm.
    pub is_absorbed: Vec<bool>,
    /// First calls of layers of experts.
    pub layers: Vec<usize>,
    /// Products that share a norm which they do, in order.
    pub several: Vec<Vec<usize>>,
    /// Products whose output is the columns of the step after them.
    pub projections: Vec<usize>,
}

/// Columns, and groups of them, of the norm that a call does, or ends with.
fn norm_groups(call: &Call) -> Option<usize> {
    match call.op {
        Op::RmsNorm { .. } => Some(1),
        Op::SsmStep { dims, .. } => Some(dims.groups),
        _ => None,
    }
}

/// What readers of an absorbed norm read: its input, or what stands in its output's place.
fn source(call: &Call) -> &Operand {
    if matches!(call.op, Op::SsmStep { .. }) { &call.outputs[0] } else { &call.inputs[0] }
}

impl Fusion {
    pub fn of(program: &Program, workgroup_bytes: usize) -> Fusion {
        let count = program.calls.len();
        let mut fusion =
            Fusion { norm_of: vec![None; count], is_absorbed: vec![false; count], ..Fusion::default() };
        let pairs = program.calls.windows(2).enumerate();
        let projected = pairs.filter(|(_, pair)| ssm_step::is_projected(&pair[0], &pair[1]));
        fusion.projections = projected.map(|(first, _)| first).collect();
        fusion.layers = (0..count).filter(|first| is_layer(program, *first)).collect();
        for (at, call) in program.calls.iter().enumerate() {
            let Some(groups) = norm_groups(call) else { continue };
            if let Some(readers) = readers(program, at, groups, workgroup_bytes) {
                fusion.is_absorbed[at] = true;
                readers.iter().for_each(|reader| fusion.norm_of[*reader] = Some(at));
                if are_one(program, source(call), &readers) {
                    fusion.several.push(readers);
                }
            }
        }
        fusion
    }
}

/// Whether products of a row may run at once: nothing else stands between them, and none writes what all read.
fn are_one(program: &Program, source: &Operand, products: &[usize]) -> bool {
    let outputs = |product: &usize| {
        let call = &program.calls[*product];
        call.outputs.iter().chain(&call.rounded)
    };
    (2..=several::MOST).contains(&products.len())
        && products.windows(2).all(|pair| pair[0] + 1 == pair[1])
        && !products.iter().flat_map(outputs).any(|output| overlaps(program, output, source))
}

/// Whether a layer of experts that may be two launches begins at a call: nothing outside of it reads what they leave out, and
/// neither writes what it reads.
fn is_layer(program: &Program, first: usize) -> bool {
    let Some(calls) = program.calls.get(first..first + experts::CALLS) else { return false };
    if !experts::is_layer(calls) {
        return false;
    }
    let is_read = |call: &usize| {
        let own = &calls[*call];
        let mut outputs = own.outputs.iter().chain(&own.rounded);
        outputs.any(|output| is_read_from(program, [first + call, first + experts::CALLS], output))
    };
    let overlap = |a: &Operand, b: &Operand| overlaps(program, a, b);
    let chosen = &calls[experts::UP_AT];
    let read = [&chosen.inputs[0], &calls[0].inputs[0], &calls[0].outputs[0]];
    let read: Vec<_> = read.into_iter().chain(&calls[0].rounded).collect();
    let is_clear = |output: &Operand| !read.iter().any(|input| overlap(output, input));
    let (residual, out) = (&calls[0].inputs[0], &calls[experts::DOWN_AT].outputs[0]);
    !experts::HIDDEN.iter().any(is_read)
        && chosen.outputs.iter().all(is_clear)
        && calls[experts::DOWN_AT - 2].inputs[2] == *residual
        && (residual == out || !overlap(residual, out))
}

/// Whether a value of call `maker` is read by call `end`, by a later one, or by the caller.
fn is_read_from(program: &Program, [maker, end]: [usize; 2], value: &Operand) -> bool {
    for (index, call) in program.calls.iter().enumerate().skip(maker + 1) {
        if index >= end && call.inputs.iter().any(|input| overlaps(program, input, value)) {
            return true;
        }
        if call.outputs.iter().chain(&call.rounded).any(|output| overlaps(program, output, value)) {
            return false;
        }
    }
    program.outputs.iter().any(|output| overlaps(program, &output.operand, value))
}

/// The products that read a norm, rounded or not, if nothing else does and its source is still there for all of them.
fn readers(program: &Program, at: usize, groups: usize, workgroup_bytes: usize) -> Option<Vec<usize>> {
    let overlap = |a: &Operand, b: &Operand| overlaps(program, a, b);
    let call = &program.calls[at];
    let (norm, source) = (&call.outputs[0], source(call));
    let mut values: Vec<&Operand> = [norm].into_iter().chain(&call.rounded).collect();
    if program.outputs.iter().any(|output| values.iter().any(|value| overlap(&output.operand, value))) {
        return None;
    }
    let (mut readers, mut is_gone) = (Vec::new(), false);
    for (later, next) in program.calls.iter().enumerate().skip(at + 1) {
        let outputs = next.outputs.iter().chain(&next.rounded);
        is_gone |= outputs.clone().any(|output| overlap(output, source));
        let is_read = |input: &Operand| values.iter().any(|value| overlap(input, value));
        if next.inputs.iter().any(is_read) {
            let out = match next.op {
                Op::Matmul { out, .. } | Op::MoeMatmul { out, .. } => out,
                _ => return None,
            };
            let x = &next.inputs[0];
            let fits = takes_norm(x.elem == I8, [norm.cols, out], groups, workgroup_bytes);
            if is_gone || next.inputs[1..].iter().any(is_read) || !values.contains(&x) || !fits {
                return None;
            }
            readers.push(later);
        }
        // Either may make room for another value before the other.
        values.retain(|value| !outputs.clone().any(|output| overlap(output, value)));
        if values.is_empty() {
            break;
        }
    }
    (!readers.is_empty()).then_some(readers)
}

/// Whether two operands share bytes of the arena.
fn overlaps(program: &Program, a: &Operand, b: &Operand) -> bool {
    let range = |operand: &Operand| {
        let start = match operand.place {
            Place::Arena(offset) => Some((0, offset)),
            Place::Hidden(offset) => Some((1, offset)),
            Place::TokenIds | Place::Wanted => None,
        };
        let rows = operand.rows.count(program.max_tokens, program.max_wanted).max(1);
        let bytes = (rows - 1) * operand.stride_bytes + operand.elem.packed_bytes(operand.cols);
        start.map(|(memory, start)| (memory, start..start + bytes))
    };
    match (range(a), range(b)) {
        (Some((of_a, a)), Some((of_b, b))) => of_a == of_b && a.start < b.end && b.start < a.end,
        _ => false,
    }
}
