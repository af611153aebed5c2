//! Runs a program on names instead of numbers: every word of the arena holds who wrote it. A value that
//! was overwritten while still needed shows as a wrong name.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mambo_graph::{Graph, Input};
use mambo_kernel::{Elem, Op, OpKind, Operand, Place, Program};

/// Columns `start .. start + cols` of the value called `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    value: u64,
    start: usize,
    cols: usize,
}

fn name(parts: impl Hash, cols: usize) -> Name {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    Name { value: hasher.finish(), start: 0, cols }
}

fn call_name(op: &Op, inputs: &[Name], weights: &[&str], output: usize, cols: usize) -> Name {
    name((format!("{op:?}"), inputs, weights, output), cols)
}

/// The names of a graph's outputs.
fn expected(graph: &Graph) -> Vec<Name> {
    let mut names = HashMap::new();
    for (value, input) in &graph.inputs {
        names.insert(*value, name(input.name(), input.value_type().cols));
    }
    for node in &graph.nodes {
        let inputs: Vec<_> = node.inputs.iter().map(|v| names[v]).collect();
        if let Op::Split { start, len } = node.op {
            let split = Name { start: inputs[0].start + start, cols: len, ..inputs[0] };
            names.insert(node.outputs[0], split);
            continue;
        }
        let weights: Vec<_> = node.weights.iter().map(|w| graph.weight(*w).name.as_str()).collect();
        for (i, output) in node.outputs.iter().enumerate() {
            names.insert(*output, call_name(&node.op, &inputs, &weights, i, graph.value_type(*output).cols));
        }
    }
    graph.outputs.iter().map(|(_, v)| names[v]).collect()
}

struct Arena<'a> {
    program: &'a Program,
    /// By four-byte word: value, row, column word.
    words: Vec<(u64, usize, usize)>,
}

impl Arena<'_> {
    fn rows(&self, operand: &Operand) -> usize {
        operand.rows.count(self.program.max_tokens, self.program.max_wanted)
    }

    fn range(&self, operand: &Operand) -> Option<std::ops::Range<usize>> {
        let Place::Arena(offset) = operand.place else { return None };
        let last = (self.rows(operand) - 1) * operand.stride_bytes;
        Some(offset..offset + last + row_words(operand) * 4)
    }

    fn read(&self, operand: &Operand) -> Name {
        let start = match operand.place {
            Place::Arena(offset) => offset / 4,
            Place::TokenIds => return name(Input::TokenIds.name(), 1),
            Place::Wanted => return name(Input::Wanted.name(), 1),
            Place::Hidden(offset) => {
                return Name { start: offset / 4, cols: operand.cols, ..name("hidden", 0) };
            }
        };
        let (value, _, column) = self.words[start];
        for row in 0..self.rows(operand) {
            for word in 0..row_words(operand) {
                let at = start + row * operand.stride_bytes / 4 + word;
                assert_eq!(
                    self.words[at],
                    (value, row, column + word),
                    "row {row} word {word} of {operand:?}"
                );
            }
        }
        Name { value, start: column, cols: operand.cols }
    }

    fn write(&mut self, operand: &Operand, value: u64) {
        let range = self.range(operand).expect("calls write to the arena");
        assert!(range.end <= self.program.arena_bytes, "{operand:?} is outside the arena");
        assert_eq!(range.start % 64, 0, "{operand:?} is not aligned");
        for row in 0..self.rows(operand) {
            for word in 0..row_words(operand) {
                self.words[(range.start + row * operand.stride_bytes) / 4 + word] = (value, row, word);
            }
        }
    }
}

fn row_words(operand: &Operand) -> usize {
    match operand.elem {
        Elem::F32 | Elem::I32 => operand.cols,
        Elem::Private(_) => operand.elem.row_bytes(operand.cols) / 4,
    }
}

/// Panics unless the program computes exactly what the graph says, however memory is shared.
pub fn assert_computes(program: &Program, graph: &Graph) {
    let mut arena = Arena { program, words: vec![(0, 0, 0); program.arena_bytes.div_ceil(4)] };
    let mut quantized: HashMap<u64, Name> = HashMap::new();
    for call in &program.calls {
        let inputs = call.inputs.iter().map(|i| arena.read(i));
        let inputs: Vec<_> = inputs.map(|n| quantized.get(&n.value).copied().unwrap_or(n)).collect();
        let weights: Vec<_> = call.weights.iter().map(|w| program.weights[*w].name.as_str()).collect();
        for written in call.outputs.iter().chain(&call.rounded).map(|o| arena.range(o).unwrap()) {
            for read in call.inputs.iter().filter_map(|o| arena.range(o)) {
                let apart = read.end <= written.start || written.end <= read.start;
                assert!(apart, "`{}` writes over its own input", call.label);
            }
        }
        let mut first = None;
        for (i, output) in call.outputs.iter().enumerate() {
            let value = call_name(&call.op, &inputs, &weights, i, output.cols);
            arena.write(output, value.value);
            first = first.or(Some(value));
            if call.op.kind() == OpKind::Quantize {
                quantized.insert(value.value, inputs[0]);
            }
        }
        if let (Some(rounded), Some(first)) = (&call.rounded, first) {
            let value = name(("rounded", first.value), rounded.cols);
            arena.write(rounded, value.value);
            quantized.insert(value.value, first);
        }
    }
    assert_ordered(program);
    let outputs: Vec<_> = program.outputs.iter().map(|o| arena.read(&o.operand)).collect();
    assert_eq!(outputs, expected(graph));
}

/// Panics unless every two calls of which one writes what the other touches are ordered, directly or through others.
fn assert_ordered(program: &Program) {
    let arena = Arena { program, words: Vec::new() };
    let range = |operand: &Operand| arena.range(operand);
    let mut before: Vec<Vec<bool>> = Vec::new();
    for (index, call) in program.calls.iter().enumerate() {
        let mut waits = vec![false; index];
        for &earlier in &call.after {
            waits[earlier] = true;
            before[earlier].iter().zip(&mut waits).for_each(|(other, waits)| *waits |= other);
        }
        let writes = |call: &mambo_kernel::Call| -> Vec<_> {
            call.outputs.iter().chain(&call.rounded).filter_map(range).collect()
        };
        let reads = |call: &mambo_kernel::Call| -> Vec<_> { call.inputs.iter().filter_map(range).collect() };
        for (earlier, other) in program.calls[..index].iter().enumerate() {
            let touches = |a: &[std::ops::Range<usize>], b: &[std::ops::Range<usize>]| {
                a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
            };
            let (own, theirs) = (writes(call), writes(other));
            let collide =
                touches(&own, &theirs) || touches(&own, &reads(other)) || touches(&reads(call), &theirs);
            assert!(!collide || waits[earlier], "`{}` does not wait for `{}`", call.label, other.label);
        }
        before.push(waits);
    }
}
