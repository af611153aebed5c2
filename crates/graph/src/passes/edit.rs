//! What every pass needs to edit a graph: which nodes define and read a value, and renumbering afterwards.

use mambo_kernel::ValueType;

use crate::graph::{Graph, Node, ValueId};

/// Who defines and who reads each value of a graph.
pub(super) struct Uses {
    producers: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
    outputs: Vec<bool>,
}

impl Uses {
    pub(super) fn of(graph: &Graph) -> Self {
        let count = graph.types.len();
        let mut uses = Uses {
            producers: vec![None; count],
            readers: vec![Vec::new(); count],
            outputs: vec![false; count],
        };
        for (i, node) in graph.nodes.iter().enumerate() {
            for output in &node.outputs {
                uses.producers[output.index()] = Some(i);
            }
            for input in &node.inputs {
                uses.readers[input.index()].push(i);
            }
        }
        for (_, value) in &graph.outputs {
            uses.outputs[value.index()] = true;
        }
        uses
    }

    /// The node that defines a value, unless it is an input.
    pub(super) fn producer(&self, value: ValueId) -> Option<usize> {
        self.producers[value.index()]
    }

    /// The one node that reads a value, if it is read once and by no caller.
    pub(super) fn sole_reader(&self, value: ValueId) -> Option<usize> {
        match (&self.readers[value.index()][..], self.outputs[value.index()]) {
            ([reader], false) => Some(*reader),
            _ => None,
        }
    }
}

/// A new value of this type.
pub(super) fn define(graph: &mut Graph, value_type: ValueType) -> ValueId {
    graph.types.push(value_type);
    ValueId(graph.types.len() as u32 - 1)
}

/// Keeps the nodes whose index is not in `removed`.
pub(super) fn remove_nodes(graph: &mut Graph, removed: &[usize]) {
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !removed.contains(&(index - 1))
    });
}

/// Numbers the values anew in order of definition, so that a pass leaves no gaps.
pub(super) fn renumber(mut graph: Graph) -> Graph {
    let mut numbers = vec![None; graph.types.len()];
    let mut types = Vec::new();
    let define = |value: &mut ValueId, types: &mut Vec<ValueType>, numbers: &mut Vec<Option<ValueId>>| {
        let new = ValueId(types.len() as u32);
        types.push(graph.types[value.index()]);
        numbers[value.index()] = Some(new);
        *value = new;
    };
    let lookup = |value: &mut ValueId, numbers: &[Option<ValueId>]| {
        *value = numbers[value.index()].expect("a pass keeps definitions before uses");
    };
    for (value, _) in &mut graph.inputs {
        define(value, &mut types, &mut numbers);
    }
    for Node { inputs, outputs, .. } in &mut graph.nodes {
        inputs.iter_mut().for_each(|value| lookup(value, &numbers));
        outputs.iter_mut().for_each(|value| define(value, &mut types, &mut numbers));
    }
    for (_, value) in &mut graph.outputs {
        lookup(value, &numbers);
    }
    graph.types = types;
    graph
}
