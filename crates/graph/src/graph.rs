//! The data structure itself: nodes over numbered values. Knows no rule a graph must obey; those are
//! in `infer` and `verify`.

use std::fmt;

use mambo_kernel::{AttentionDims, Op, Rows, SsmDims, ValueType};

/// Number of a value in its graph; indexes [`Graph::types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Number of a weight in its graph; indexes [`Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

impl ValueId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl WeightId {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// What a step feeds into a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// One token id per row: `i32[T, 1]`.
    TokenIds,
    /// Numbers of the rows whose logits are wanted: `i32[W, 1]`.
    Wanted,
    /// Hidden rows of an earlier step: `f32[T, cols]`.
    Hidden {
        /// Width of a row.
        cols: usize,
    },
}

impl Input {
    /// The type of the value it becomes.
    pub fn value_type(self) -> ValueType {
        match self {
            Input::TokenIds => ValueType::i32(Rows::TOKENS, 1),
            Input::Wanted => ValueType::i32(Rows::WANTED, 1),
            Input::Hidden { cols } => ValueType::f32(Rows::TOKENS, cols),
        }
    }

    /// The name in printed graphs and plans.
    pub fn name(self) -> &'static str {
        match self {
            Input::TokenIds => "token_ids",
            Input::Wanted => "wanted",
            Input::Hidden { .. } => "hidden",
        }
    }
}

/// A weight by canonical name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Canonical name, such as `layers.3.in_proj`.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
}

/// One op applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Values read, in port order.
    pub inputs: Vec<ValueId>,
    /// Weights read, in port order.
    pub weights: Vec<WeightId>,
    /// Cache layer, an index into [`Graph::kv_layers`] or [`Graph::state_layers`] as the op says.
    pub cache: Option<usize>,
    /// Values defined, in port order.
    pub outputs: Vec<ValueId>,
    /// What the node is in the model, such as `layers.3.in_proj`.
    pub label: String,
}

/// A model, or a part of one, as ops in SSA form. Value numbers are dense.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// What it computes, such as `trunk`.
    pub name: String,
    /// Values fed in.
    pub inputs: Vec<(ValueId, Input)>,
    /// Weights, by [`WeightId`].
    pub weights: Vec<WeightDecl>,
    /// Attention caches.
    pub kv_layers: Vec<AttentionDims>,
    /// Recurrent caches.
    pub state_layers: Vec<SsmDims>,
    /// The nodes, each after those it reads.
    pub nodes: Vec<Node>,
    /// Types, by [`ValueId`].
    pub types: Vec<ValueType>,
    /// Values the caller reads, by name.
    pub outputs: Vec<(String, ValueId)>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Graph {
            name: name.into(),
            inputs: Vec::new(),
            weights: Vec::new(),
            kv_layers: Vec::new(),
            state_layers: Vec::new(),
            nodes: Vec::new(),
            types: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// The type of a value.
    pub fn value_type(&self, value: ValueId) -> ValueType {
        self.types[value.index()]
    }

    /// The declaration of a weight.
    pub fn weight(&self, weight: WeightId) -> &WeightDecl {
        &self.weights[weight.index()]
    }

    /// How far back each attention layer sees, from the op that uses it; a layer of another graph counts as one that sees
    /// everything.
    pub fn kv_windows(&self) -> Vec<Option<usize>> {
        let mut windows = vec![None; self.kv_layers.len()];
        for node in &self.nodes {
            if let (Op::Attention(attention), Some(layer)) = (&node.op, node.cache) {
                windows[layer] = attention.window;
            }
        }
        windows
    }

    /// The same graph without one of its outputs; what only that needed is dropped by a pass.
    pub fn without_output(&self, name: &str) -> Graph {
        let mut graph = self.clone();
        graph.outputs.retain(|(output, _)| output != name);
        graph
    }
}
