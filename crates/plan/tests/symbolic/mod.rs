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
        Elem::Q8 | Elem::BF16X2 => operand.elem.row_bytes(operand.cols) / 4,
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
        for (i, output) in call.outputs.iter().enumerate() {
            let written = arena.range(output).unwrap();
            for read in call.inputs.iter().filter_map(|o| arena.range(o)) {
                let apart = read.end <= written.start || written.end <= read.start;
                assert!(apart, "`{}` writes over its own input", call.label);
            }
            let value = call_name(&call.op, &inputs, &weights, i, output.cols);
            arena.write(output, value.value);
            if call.op.kind() == OpKind::Quantize {
                quantized.insert(value.value, inputs[0]);
            }
        }
    }
    let outputs: Vec<_> = program.outputs.iter().map(|o| arena.read(&o.operand)).collect();
    assert_eq!(outputs, expected(graph));
}
