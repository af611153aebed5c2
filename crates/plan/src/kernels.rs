//! A backend as planning sees it: a name and kernel rows, of which the first that accepts is taken.

use mambo_graph::{Graph, Node, ValueId};
use mambo_kernel::{
    Activation, Backend, CacheTypes, Epilogue, KernelRow, Op, OpKind, Phase, Rows, Site, ValueType,
};
use mambo_tensor::DType;

/// The kernels on offer.
#[derive(Clone, Copy)]
pub struct Kernels<'a> {
    /// Name of the backend.
    pub backend: &'a str,
    /// Its rows, best first within an op.
    pub rows: &'a [KernelRow],
}

impl<'a> Kernels<'a> {
    /// The kernels of a backend.
    pub fn of(backend: &'a dyn Backend) -> Self {
        Kernels { backend: backend.name(), rows: backend.kernels() }
    }

    /// The index of the first row that accepts a site.
    pub fn choose(&self, site: &Site) -> Option<usize> {
        self.rows.iter().position(|row| row.op == site.op.kind() && (row.accepts)(site))
    }

    /// Whether every place of `graph` that would become the fused `op` has a row for it.
    ///
    /// A pass checks this before it fuses: a fusion that has rows for some places only would make the
    /// others errors.
    pub fn offers(
        &self,
        op: &Op,
        phase: Phase,
        caches: CacheTypes,
        graph: &Graph,
        weight_type: &dyn Fn(&str) -> Option<DType>,
    ) -> bool {
        let type_of = |node: &Node| -> Vec<DType> {
            node.weights.iter().filter_map(|w| weight_type(&graph.weight(*w).name)).collect()
        };
        let accepts = |weight_types: &[DType], inputs: &[ValueType]| {
            self.choose(&Site { op, phase, inputs, weight_types, caches }).is_some()
        };
        if let Op::SsmStep { dims, .. } = op {
            let layers = (0..graph.state_layers.len()).filter(|i| graph.state_layers[*i] == *dims);
            let input = [ValueType::f32(Rows::TOKENS, dims.in_proj())];
            return layers.into_iter().all(|layer| accepts(&step_types(graph, layer, &type_of), &input));
        }
        let inputs = |node: &Node| -> Vec<ValueType> {
            node.inputs.iter().map(|value| graph.value_type(*value)).collect()
        };
        if let Some(activation) = activation_of_gate(op) {
            let product = |value: &ValueId| {
                graph.nodes.iter().find(|node| node.outputs.contains(value) && same_product(&node.op, op))
            };
            let gated = graph.nodes.iter().filter(|node| node.op == Op::Glu(activation));
            let mut pairs =
                gated.filter_map(|glu| Some([product(&glu.inputs[1])?, product(&glu.inputs[0])?]));
            return pairs.all(|pair| accepts(&pair.map(type_of).concat(), &inputs(pair[0])));
        }
        let places = graph.nodes.iter().filter(|node| same_product(&node.op, op));
        places.into_iter().all(|node| accepts(&type_of(node), &inputs(node)))
    }
}

/// The activation of a product's gate, if it has one.
fn activation_of_gate(op: &Op) -> Option<Activation> {
    match *op {
        Op::Matmul { epilogue: Epilogue::Glu(activation), .. }
        | Op::MoeMatmul { epilogue: Epilogue::Glu(activation), .. } => Some(activation),
        _ => None,
    }
}

/// Whether two ops differ in nothing but what is fused into them.
fn same_product(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Matmul { out: a, .. }, Op::Matmul { out: b, .. }) => a == b,
        (Op::MoeMatmul { out: a, experts: e, .. }, Op::MoeMatmul { out: b, experts: f, .. }) => {
            (a, e) == (b, f)
        }
        (Op::MoeCombine { top_k: a, .. }, Op::MoeCombine { top_k: b, .. }) => a == b,
        _ => a == b,
    }
}

/// Types of the weights of a mixer's parts in the port order of `ssm_step`.
fn step_types(graph: &Graph, layer: usize, type_of: &dyn Fn(&Node) -> Vec<DType>) -> Vec<DType> {
    let scan = graph.nodes.iter().find(|n| n.op.kind() == OpKind::SsmScan && n.cache == Some(layer));
    let Some(scan) = scan else { return Vec::new() };
    let producer = |port: usize| graph.nodes.iter().find(|n| n.outputs.contains(&scan.inputs[port]));
    let norm = graph.nodes.iter().find(|n| n.inputs.first() == scan.outputs.first());
    [producer(0), producer(1), Some(scan), norm].into_iter().flatten().flat_map(type_of).collect()
}
