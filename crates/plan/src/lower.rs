//! Turns a graph into a program: a kernel row per node, conversions where a row reads a private type, splits as
//! strided operands, a place in the arena for every value, and the order that calls have to keep.
//!
//! A conversion is a second output of the call that makes the value, where its row can write one, and else a
//! `quantize` call of its own.
//!
//! Must not know what a kernel does, nor any weight's contents.

use std::collections::HashMap;

use mambo_graph::{Graph, Input, Node, ValueId};
use mambo_kernel::{
    CacheKind, CacheTypes, Call, Elem, Op, Operand, Output, Phase, Place, Program, ROW_ALIGN, Rows, Site,
    ValueType, WeightKey,
};
use mambo_tensor::DType;

use crate::error::{NoKernel, PlanError};
use crate::kernels::Kernels;
use crate::memory::{Interval, plan_memory};
use crate::overlap::order_calls;

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
    /// Element types of the caches it runs on.
    pub caches: CacheTypes,
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

/// A call before offsets are known.
struct Draft {
    op: Op,
    kernel: usize,
    label: String,
    /// Types of the inputs as the graph has them.
    types: Vec<ValueType>,
    inputs: Vec<View>,
    outputs: Vec<View>,
    rounded: Option<View>,
    weights: Vec<usize>,
    weight_types: Vec<DType>,
    cache: Option<usize>,
}

struct Lowering<'a> {
    graph: &'a Graph,
    kernels: &'a Kernels<'a>,
    options: &'a LowerOptions<'a>,
    buffers: Vec<Interval>,
    /// Bytes of all buffers together.
    bytes: usize,
    views: HashMap<ValueId, View>,
    rounded: HashMap<(ValueId, Elem), View>,
    /// The draft whose first output a value is.
    makers: HashMap<ValueId, usize>,
    drafts: Vec<Draft>,
    weights: Vec<WeightKey>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, kernels: &'a Kernels<'a>, options: &'a LowerOptions<'a>) -> Self {
        Lowering {
            graph,
            kernels,
            options,
            buffers: Vec::new(),
            bytes: 0,
            views: HashMap::new(),
            rounded: HashMap::new(),
            makers: HashMap::new(),
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
        let types: Vec<_> = node.inputs.iter().map(|v| self.graph.value_type(*v)).collect();
        let kernel = self.choose(node, &weight_types, &types)?;
        let mut inputs = Vec::with_capacity(types.len());
        for (port, (&value, &value_type)) in node.inputs.iter().zip(&types).enumerate() {
            inputs.push(self.read(node, kernel, port, value, value_type)?);
        }
        let ports = node.op.weight_ports(&types);
        let names = node.weights.iter().map(|w| self.graph.weight(*w).name.clone());
        let form = self.kernels.rows[kernel].weight_form;
        let keys: Vec<_> =
            names.zip(ports).map(|(name, port)| WeightKey { name, usage: port.usage, form }).collect();
        let weights = keys.into_iter().map(|key| self.weight(key)).collect();
        let (op, label, cache) = (node.op, node.label.clone(), node.cache);
        let draft = Draft {
            op,
            kernel,
            label,
            types,
            inputs,
            outputs: Vec::new(),
            rounded: None,
            weights,
            weight_types,
            cache,
        };
        let outputs: Vec<_> = node.outputs.iter().map(|v| self.graph.value_type(*v)).collect();
        self.makers.insert(node.outputs[0], self.drafts.len());
        let outputs = self.call(draft, &outputs)?;
        self.views.extend(node.outputs.iter().copied().zip(outputs));
        Ok(())
    }

    /// A value in the type that a kernel reads it in.
    fn read(
        &mut self,
        node: &Node,
        kernel: usize,
        port: usize,
        value: ValueId,
        value_type: ValueType,
    ) -> Result<View, PlanError> {
        let row = &self.kernels.rows[kernel];
        match (row.inputs[port], value_type.elem) {
            (want, has) if want == has => Ok(self.views[&value]),
            (want, Elem::F32) if want.is_private() => self.round(value, value_type, want),
            (want, _) => Err(PlanError::Element {
                kernel: row.name.clone(),
                label: node.label.clone(),
                want: want.name(),
                got: value_type.to_string(),
            }),
        }
    }

    /// A split is a view of its parent's rows, and extends the lifetime of the parent's memory.
    fn split(&mut self, node: &Node, start: usize) {
        let parent = self.views[&node.inputs[0]];
        let value_type = self.graph.value_type(node.outputs[0]);
        let view = View { offset: parent.offset + start * 4, value_type, ..parent };
        self.views.insert(node.outputs[0], view);
    }

    /// A value in a private type, made once: by the call that makes the value if its kernel can, else before its
    /// first reader.
    fn round(&mut self, value: ValueId, value_type: ValueType, to: Elem) -> Result<View, PlanError> {
        if let Some(view) = self.rounded.get(&(value, to)) {
            return Ok(*view);
        }
        let output = ValueType { elem: to, ..value_type };
        let maker = self.makers.get(&value).copied();
        let view = match maker.filter(|maker| self.can_round(&self.drafts[*maker], to)) {
            Some(maker) => {
                let view = self.buffer(maker, output)?;
                self.drafts[maker].rounded = Some(view);
                view
            }
            None => self.quantize(value, value_type, output)?,
        };
        self.rounded.insert((value, to), view);
        Ok(view)
    }

    /// Whether a call can still write its first output a second time, in this type.
    fn can_round(&self, draft: &Draft, to: Elem) -> bool {
        let site = self.site(&draft.op, &draft.types, &draft.weight_types);
        draft.rounded.is_none() && (self.kernels.rows[draft.kernel].rounds)(&site, to)
    }

    /// A call that rounds a value.
    fn quantize(
        &mut self,
        value: ValueId,
        value_type: ValueType,
        output: ValueType,
    ) -> Result<View, PlanError> {
        let op = Op::Quantize(output.elem);
        let maker = self.graph.nodes.iter().find(|node| node.outputs.contains(&value));
        let made = maker.map_or("hidden", |node| node.label.as_str());
        let label = format!("{made}.{}", output.elem.name());
        let kernel = self.kernels.choose(&self.site(&op, &[value_type], &[])).ok_or_else(|| {
            let types = format!("{value_type} -> {output}");
            self.no_kernel(&op, &label, types)
        })?;
        let (outputs, weights, weight_types) = (Vec::new(), Vec::new(), Vec::new());
        let (types, inputs) = (vec![value_type], vec![self.views[&value]]);
        let draft = Draft {
            op,
            kernel,
            label,
            types,
            inputs,
            outputs,
            rounded: None,
            weights,
            weight_types,
            cache: None,
        };
        Ok(self.call(draft, &[output])?[0])
    }

    fn site<'s>(&self, op: &'s Op, inputs: &'s [ValueType], weight_types: &'s [DType]) -> Site<'s> {
        Site { op, phase: self.options.phase, inputs, weight_types, caches: self.options.caches }
    }

    /// Appends a call and gives it new memory for its outputs.
    fn call(&mut self, mut draft: Draft, outputs: &[ValueType]) -> Result<Vec<View>, PlanError> {
        let index = self.drafts.len();
        for input in &draft.inputs {
            self.keep(*input, index);
        }
        draft.outputs = outputs.iter().map(|t| self.buffer(index, *t)).collect::<Result<_, _>>()?;
        let outputs = draft.outputs.clone();
        self.drafts.push(draft);
        Ok(outputs)
    }

    /// Keeps a value's memory until a call.
    fn keep(&mut self, view: View, until: usize) {
        if let Source::Buffer(buffer) = view.source {
            self.buffers[buffer].last = until;
        }
    }

    fn buffer(&mut self, first: usize, value_type: ValueType) -> Result<View, PlanError> {
        let LowerOptions { name, max_tokens: tokens, max_wanted: wanted, .. } = *self.options;
        let stride_bytes = value_type.elem.row_bytes(value_type.cols);
        let unit = Rows { times: 1, ..value_type.rows }.count(tokens, wanted);
        let bytes = unit.checked_mul(value_type.rows.times).and_then(|rows| rows.checked_mul(stride_bytes));
        // Offsets stay below the sum of all sizes, so that they fit where it does.
        let total = bytes.and_then(|bytes| self.bytes.checked_add(bytes)?.checked_add(ROW_ALIGN));
        let too_large = || PlanError::TooLarge { name: name.to_string(), tokens, wanted };
        self.bytes = total.ok_or_else(too_large)?;
        self.buffers.push(Interval { first, last: first, bytes: bytes.unwrap_or(0) });
        Ok(View { source: Source::Buffer(self.buffers.len() - 1), offset: 0, value_type, stride_bytes })
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

    fn choose(&self, node: &Node, weight_types: &[DType], inputs: &[ValueType]) -> Result<usize, PlanError> {
        self.kernels.choose(&self.site(&node.op, inputs, weight_types)).ok_or_else(|| {
            let list = |values: &[ValueId]| {
                let types: Vec<_> = values.iter().map(|v| self.graph.value_type(*v).to_string()).collect();
                types.join(", ")
            };
            let mut types = list(&node.inputs);
            if !weight_types.is_empty() {
                let names: Vec<_> = weight_types.iter().map(DType::to_string).collect();
                types += &format!(", weights {}", names.join(" "));
            }
            match node.op.cache() {
                Some(CacheKind::Kv) => types += &format!(", {} keys and values", self.options.caches.kv),
                Some(CacheKind::State) => types += &format!(", {} states", self.options.caches.state.name()),
                None => {}
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
        let operands =
            |views: &[View]| -> Vec<Operand> { views.iter().map(|v| v.operand(&memory.offsets)).collect() };
        let calls = self.drafts.into_iter().map(|draft| Call {
            op: draft.op,
            kernel: draft.kernel,
            inputs: operands(&draft.inputs),
            outputs: operands(&draft.outputs),
            rounded: draft.rounded.map(|view| view.operand(&memory.offsets)),
            weights: draft.weights,
            cache: draft.cache,
            label: draft.label,
            after: Vec::new(),
        });
        let output = |(name, view): &(&String, View)| Output {
            name: name.to_string(),
            operand: view.operand(&memory.offsets),
        };
        let mut program = Program {
            name: self.options.name.to_string(),
            phase: self.options.phase,
            max_tokens: self.options.max_tokens,
            max_wanted: self.options.max_wanted,
            calls: calls.collect(),
            weights: self.weights,
            outputs: outputs.iter().map(output).collect(),
            arena_bytes: memory.arena_bytes,
            unpooled_bytes: memory.unpooled_bytes,
        };
        order_calls(&mut program);
        Ok(program)
    }
}
