//! Turns a graph into a program: a kernel row per node, conversions where a row reads other elements,
//! splits as strided operands, and a place in the arena for every value.
//!
//! Must not know what a kernel does, nor any weight's contents.

use std::collections::HashMap;

use mambo_graph::{Graph, Input, Node, ValueId};
use mambo_kernel::{Call, Elem, Op, Operand, Output, Phase, Place, Program, Site, ValueType, WeightKey};
use mambo_tensor::DType;

use crate::error::{NoKernel, PlanError};
use crate::kernels::Kernels;
use crate::memory::{Interval, plan_memory};

/// What a program is made for.
#[derive(Clone, Copy)]
pub struct LowerOptions<'a> {
    /// Name of the program, for messages.
    pub name: &'a str,
    /// What it is for.
    pub phase: Phase,
    /// Most tokens a step may have.
    pub max_tokens: usize,
    /// Most wanted rows a step may have.
    pub max_wanted: usize,
    /// Stored element type of a weight by canonical name; none if the checkpoint lacks it.
    pub weight_type: &'a dyn Fn(&str) -> Option<DType>,
}

/// Lowers a graph to a program of the backend's kernels.
pub fn lower(graph: &Graph, kernels: &Kernels, options: &LowerOptions) -> Result<Program, PlanError> {
    graph.verify()?;
    if options.max_tokens == 0 || options.max_wanted == 0 {
        let (tokens, wanted) = (options.max_tokens, options.max_wanted);
        return Err(PlanError::NoRows { name: options.name.to_string(), tokens, wanted });
    }
    let mut lowering = Lowering::new(graph, kernels, options);
    for (value, input) in &graph.inputs {
        lowering.input(*value, *input);
    }
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    lowering.finish()
}

/// Where a value's bytes are before offsets are known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    TokenIds,
    Wanted,
    Hidden,
    Buffer(usize),
}

/// An operand before offsets are known.
#[derive(Clone, Copy, Debug, PartialEq)]
struct View {
    source: Source,
    /// Bytes from the start of the source.
    offset: usize,
    value_type: ValueType,
    stride_bytes: usize,
}

impl View {
    fn operand(&self, offsets: &[usize]) -> Operand {
        let place = match self.source {
            Source::TokenIds => Place::TokenIds,
            Source::Wanted => Place::Wanted,
            Source::Hidden => Place::Hidden(self.offset),
            Source::Buffer(buffer) => Place::Arena(offsets[buffer] + self.offset),
        };
        let ValueType { elem, rows, cols } = self.value_type;
        Operand { place, elem, rows, cols, stride_bytes: self.stride_bytes }
    }
}

struct Draft {
    op: Op,
    kernel: usize,
    label: String,
    inputs: Vec<View>,
    outputs: Vec<View>,
    weights: Vec<usize>,
    cache: Option<usize>,
}

struct Lowering<'a> {
    graph: &'a Graph,
    kernels: &'a Kernels<'a>,
    options: &'a LowerOptions<'a>,
    buffers: Vec<Interval>,
    views: HashMap<ValueId, View>,
    quantized: HashMap<(ValueId, Elem), View>,
    producers: HashMap<ValueId, &'a str>,
    drafts: Vec<Draft>,
    weights: Vec<WeightKey>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, kernels: &'a Kernels<'a>, options: &'a LowerOptions<'a>) -> Self {
        let labels = graph.nodes.iter().flat_map(|n| n.outputs.iter().map(|v| (*v, n.label.as_str())));
        Lowering {
            graph,
            kernels,
            options,
            buffers: Vec::new(),
            views: HashMap::new(),
            quantized: HashMap::new(),
            producers: labels.collect(),
            drafts: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Step inputs lie outside the arena, their rows one after the other.
    fn input(&mut self, value: ValueId, input: Input) {
        let source = match input {
            Input::TokenIds => Source::TokenIds,
            Input::Wanted => Source::Wanted,
            Input::Hidden { .. } => Source::Hidden,
        };
        let value_type = input.value_type();
        let stride_bytes = value_type.cols * 4;
        self.views.insert(value, View { source, offset: 0, value_type, stride_bytes });
    }

    fn node(&mut self, node: &Node) -> Result<(), PlanError> {
        if let Op::Split { start, .. } = node.op {
            self.split(node, start);
            return Ok(());
        }
        let weight_types = self.weight_types(node)?;
        let input = self.graph.value_type(node.inputs[0]);
        let kernel = self.choose(node, &weight_types, input)?;
        let row = &self.kernels.rows[kernel];
        let mut inputs: Vec<View> = node.inputs.iter().map(|v| self.views[v]).collect();
        if row.input != input.elem {
            inputs[0] = match (row.input, input.elem) {
                (to, Elem::F32) if to.is_rounded() => self.quantize(node.inputs[0], input, to)?,
                _ => {
                    return Err(PlanError::Element {
                        kernel: row.name.clone(),
                        label: node.label.clone(),
                        want: row.input.name(),
                        got: input.to_string(),
                    });
                }
            };
        }
        let types: Vec<_> = node.inputs.iter().map(|v| self.graph.value_type(*v)).collect();
        let ports = node.op.weight_ports(&types);
        let names = node.weights.iter().map(|w| self.graph.weight(*w).name.clone());
        let keys: Vec<_> =
            names.zip(ports).map(|(name, port)| WeightKey { name, usage: port.usage }).collect();
        let weights = keys.into_iter().map(|key| self.weight(key)).collect();
        let outputs: Vec<_> = node.outputs.iter().map(|v| self.graph.value_type(*v)).collect();
        let (op, label, cache) = (node.op, node.label.clone(), node.cache);
        let draft = Draft { op, kernel, label, inputs, outputs: Vec::new(), weights, cache };
        let outputs = self.call(draft, &outputs);
        self.views.extend(node.outputs.iter().copied().zip(outputs));
        Ok(())
    }

    /// A split is a window on its parent's rows, and keeps the parent's memory alive.
    fn split(&mut self, node: &Node, start: usize) {
        let parent = self.views[&node.inputs[0]];
        let value_type = self.graph.value_type(node.outputs[0]);
        let view = View { offset: parent.offset + start * 4, value_type, ..parent };
        self.views.insert(node.outputs[0], view);
    }

    /// The rounded form of a value, made once before its first reader.
    fn quantize(&mut self, value: ValueId, value_type: ValueType, to: Elem) -> Result<View, PlanError> {
        if let Some(view) = self.quantized.get(&(value, to)) {
            return Ok(*view);
        }
        let label = format!("{}.{}", self.producers.get(&value).copied().unwrap_or("hidden"), to.name());
        let output = ValueType { elem: to, ..value_type };
        let site = Site {
            op: &Op::Quantize(to),
            phase: self.options.phase,
            weight_types: &[],
            input_cols: value_type.cols,
        };
        let kernel = self.kernels.choose(&site).ok_or_else(|| {
            let types = format!("{value_type} -> {output}");
            self.no_kernel(&Op::Quantize(to), &label, types)
        })?;
        let inputs = vec![self.views[&value]];
        // Whoever has just made the value may round it as well: what he reads must not be where that goes.
        let index = self.drafts.len();
        let maker = self.drafts.last().filter(|draft| draft.outputs == inputs);
        for input in maker.map(|draft| draft.inputs.clone()).unwrap_or_default() {
            self.keep(input, index);
        }
        let (op, outputs, weights) = (Op::Quantize(to), Vec::new(), Vec::new());
        let view =
            self.call(Draft { op, kernel, label, inputs, outputs, weights, cache: None }, &[output])[0];
        self.quantized.insert((value, to), view);
        Ok(view)
    }

    /// Appends a call and gives it new memory for its outputs.
    fn call(&mut self, mut draft: Draft, outputs: &[ValueType]) -> Vec<View> {
        let index = self.drafts.len();
        for input in &draft.inputs {
            self.keep(*input, index);
        }
        draft.outputs = outputs.iter().map(|t| self.buffer(index, *t)).collect();
        let outputs = draft.outputs.clone();
        self.drafts.push(draft);
        outputs
    }

    /// Keeps a value's memory until a call.
    fn keep(&mut self, view: View, until: usize) {
        if let Source::Buffer(buffer) = view.source {
            self.buffers[buffer].last = until;
        }
    }

    fn buffer(&mut self, first: usize, value_type: ValueType) -> View {
        let stride_bytes = value_type.elem.row_bytes(value_type.cols);
        let rows = value_type.rows.count(self.options.max_tokens, self.options.max_wanted);
        self.buffers.push(Interval { first, last: first, bytes: rows * stride_bytes });
        View { source: Source::Buffer(self.buffers.len() - 1), offset: 0, value_type, stride_bytes }
    }

    fn weight(&mut self, key: WeightKey) -> usize {
        self.weights.iter().position(|k| *k == key).unwrap_or_else(|| {
            self.weights.push(key);
            self.weights.len() - 1
        })
    }

    fn weight_types(&self, node: &Node) -> Result<Vec<DType>, PlanError> {
        let names = node.weights.iter().map(|w| &self.graph.weight(*w).name);
        let type_of = |name: &String| {
            let missing = || PlanError::MissingWeight { label: node.label.clone(), weight: name.to_string() };
            (self.options.weight_type)(name).ok_or_else(missing)
        };
        names.map(type_of).collect()
    }

    fn choose(&self, node: &Node, weight_types: &[DType], input: ValueType) -> Result<usize, PlanError> {
        let site = Site { op: &node.op, phase: self.options.phase, weight_types, input_cols: input.cols };
        self.kernels.choose(&site).ok_or_else(|| {
            let list = |values: &[ValueId]| {
                let types: Vec<_> = values.iter().map(|v| self.graph.value_type(*v).to_string()).collect();
                types.join(", ")
            };
            let mut types = list(&node.inputs);
            if !weight_types.is_empty() {
                let names: Vec<_> = weight_types.iter().map(DType::to_string).collect();
                types += &format!(", weights {}", names.join(" "));
            }
            self.no_kernel(&node.op, &node.label, format!("{types} -> {}", list(&node.outputs)))
        })
    }

    fn no_kernel(&self, op: &Op, label: &str, types: String) -> PlanError {
        let rows = self.kernels.rows.iter().filter(|row| row.op == op.kind());
        let names: Vec<_> = rows.map(|row| row.name.as_str()).collect();
        let remedy = match names.is_empty() {
            true => "it has no row for this op at all; use another backend".to_string(),
            false => format!("it has {}; convert the weights to a type one of them takes", names.join(", ")),
        };
        PlanError::NoKernel(Box::new(NoKernel {
            backend: self.kernels.backend.to_string(),
            op: op.kind().name(),
            label: label.to_string(),
            types,
            phase: self.options.phase.name(),
            remedy,
        }))
    }

    fn finish(mut self) -> Result<Program, PlanError> {
        let end = self.drafts.len();
        let outputs: Vec<_> = self.graph.outputs.iter().map(|(name, v)| (name, self.views[v])).collect();
        for (name, view) in &outputs {
            match view.source {
                Source::Buffer(buffer) => self.buffers[buffer].last = end,
                _ => return Err(PlanError::InputOutput { output: name.to_string() }),
            }
        }
        let memory = plan_memory(&self.buffers);
        let operands = |views: &[View]| views.iter().map(|v| v.operand(&memory.offsets)).collect();
        let calls = self.drafts.into_iter().map(|draft| Call {
            op: draft.op,
            kernel: draft.kernel,
            inputs: operands(&draft.inputs),
            outputs: operands(&draft.outputs),
            weights: draft.weights,
            cache: draft.cache,
            label: draft.label,
        });
        let output = |(name, view): &(&String, View)| Output {
            name: name.to_string(),
            operand: view.operand(&memory.offsets),
        };
        Ok(Program {
            name: self.options.name.to_string(),
            phase: self.options.phase,
            max_tokens: self.options.max_tokens,
            max_wanted: self.options.max_wanted,
            calls: calls.collect(),
            weights: self.weights,
            outputs: outputs.iter().map(output).collect(),
            arena_bytes: memory.arena_bytes,
            unpooled_bytes: memory.unpooled_bytes,
        })
    }
}
