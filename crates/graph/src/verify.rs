//! The rules every graph obeys, checked after building, parsing and each pass. Changes nothing.

use std::collections::HashSet;

use mambo_kernel::{CacheKind, MAX_SIZE, Op, OpKind, ValueType};

use crate::error::GraphError;
use crate::graph::{Graph, Node, ValueId};
use crate::infer::infer_node;

impl Graph {
    /// Checks names, single definition before use, types, weights, caches and outputs.
    pub fn verify(&self) -> Result<(), GraphError> {
        check_names(self)?;
        check_definitions(self)?;
        let mut defined = vec![false; self.types.len()];
        for (value, input) in &self.inputs {
            check_declared(self, "input", *value, input.value_type())?;
            defined[value.index()] = true;
        }
        for node in &self.nodes {
            check_node(self, node, &defined)?;
            for output in &node.outputs {
                defined[output.index()] = true;
            }
        }
        check_caches(self)?;
        check_outputs(self)
    }
}

/// Whether a graph or weight name survives being printed between spaces and commas.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| !c.is_whitespace() && !c.is_control() && !";,=".contains(c))
}

fn check_names(graph: &Graph) -> Result<(), GraphError> {
    let fail = |what, name: &str, problem: &str| {
        Err(GraphError::Name { what, name: name.escape_debug().to_string(), problem: problem.to_string() })
    };
    const WORD: &str = "is not a word; use letters, digits, dots and underscores";
    if !is_word(&graph.name) {
        return fail("graph name", &graph.name, WORD);
    }
    let mut seen = HashSet::new();
    for weight in &graph.weights {
        if !is_word(&weight.name) {
            return fail("weight name", &weight.name, WORD);
        }
        if !seen.insert(&weight.name) {
            return fail("weight", &weight.name, "is declared twice; declare it once with its one shape");
        }
        if weight.shape.is_empty() || weight.shape.iter().any(|s| *s == 0 || *s > MAX_SIZE) {
            return fail("weight", &weight.name, "has an empty or oversized shape; give every size");
        }
    }
    let mut seen = HashSet::new();
    for (value, input) in &graph.inputs {
        if !seen.insert(input.name()) {
            return fail("input", input.name(), "is declared twice; share the one value");
        }
        if let crate::Input::Hidden { cols: 0 } = input {
            return fail("input", &value.to_string(), "has no columns; give its width");
        }
    }
    for node in &graph.nodes {
        let label = &node.label;
        if label.trim() != label || label.is_empty() || label.chars().any(char::is_control) {
            return fail("label", label, "is not a line of text; give the node's place in the model");
        }
    }
    Ok(())
}

fn check_definitions(graph: &Graph) -> Result<(), GraphError> {
    let count = graph.types.len();
    let mut times = vec![0usize; count];
    let inputs = graph.inputs.iter().map(|(value, _)| *value);
    for value in inputs.chain(graph.nodes.iter().flat_map(|node| node.outputs.iter().copied())) {
        match times.get_mut(value.index()) {
            Some(n) => *n += 1,
            None => return Err(GraphError::Definitions { value: value.to_string(), times: 1, count }),
        }
    }
    match times.iter().position(|n| *n != 1) {
        Some(i) => {
            Err(GraphError::Definitions { value: ValueId(i as u32).to_string(), times: times[i], count })
        }
        None => Ok(()),
    }
}

fn check_declared(graph: &Graph, label: &str, value: ValueId, inferred: ValueType) -> Result<(), GraphError> {
    let declared = graph.value_type(value);
    match declared == inferred {
        true => Ok(()),
        false => Err(GraphError::Declared {
            label: label.to_string(),
            value: value.to_string(),
            declared: declared.to_string(),
            inferred: inferred.to_string(),
        }),
    }
}

fn check_node(graph: &Graph, node: &Node, defined: &[bool]) -> Result<(), GraphError> {
    let undefined = |what: String| GraphError::Undefined { place: format!("node `{}`", node.label), what };
    for input in &node.inputs {
        if defined.get(input.index()) != Some(&true) {
            return Err(undefined(input.to_string()));
        }
    }
    if let Some(weight) = node.weights.iter().find(|w| w.index() >= graph.weights.len()) {
        return Err(undefined(format!("weight {}", weight.0)));
    }
    let inputs: Vec<_> = node.inputs.iter().map(|v| graph.value_type(*v)).collect();
    let weights: Vec<_> = node.weights.iter().map(|w| graph.weight(*w)).collect();
    let outputs = infer_node(&node.op, &node.label, &inputs, &weights)?;
    if outputs.len() != node.outputs.len() {
        return Err(GraphError::Count {
            label: node.label.clone(),
            op: node.op.kind().name(),
            what: "outputs",
            want: outputs.len(),
            got: node.outputs.len(),
        });
    }
    for (value, inferred) in node.outputs.iter().zip(outputs) {
        check_declared(graph, &node.label, *value, inferred)?;
    }
    check_cache(graph, &node.op, &node.label, node.cache)
}

/// Checks that a node names a cache exactly if its op has one, of its kind and sizes.
pub(crate) fn check_cache(
    graph: &Graph,
    op: &Op,
    label: &str,
    cache: Option<usize>,
) -> Result<(), GraphError> {
    let fail = |problem| Err(GraphError::Cache { label: label.to_string(), problem });
    let name = op.kind().name();
    let (kind, layer) = match (op.cache(), cache) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return fail(format!("{name} has no cache; pass none")),
        (Some(CacheKind::Kv), None) => return fail(format!("{name} needs a kv layer; declare one")),
        (Some(CacheKind::State), None) => return fail(format!("{name} needs a state layer; declare one")),
        (Some(kind), Some(layer)) => (kind, layer),
    };
    let (declared, same) = match kind {
        CacheKind::Kv => (
            graph.kv_layers.len(),
            match (op, graph.kv_layers.get(layer)) {
                (Op::Attention(a), Some(decl)) => a.dims == *decl,
                _ => false,
            },
        ),
        CacheKind::State => (
            graph.state_layers.len(),
            match (op, graph.state_layers.get(layer)) {
                (Op::SsmConv(d) | Op::SsmScan(d) | Op::SsmStep { dims: d, .. }, Some(decl)) => d == decl,
                (Op::ShortConv(d) | Op::DeltaScan(d), Some(decl)) => d == decl,
                _ => false,
            },
        ),
    };
    if layer >= declared {
        return fail(format!("{name} uses cache layer {layer}, but {declared} are declared; declare it"));
    }
    match same {
        true => Ok(()),
        false => fail(format!("{name} and cache layer {layer} have different sizes; use the op's own layer")),
    }
}

/// Checks that a layer has one owner: one attention; one conv then its scan; or one fused step.
fn check_caches(graph: &Graph) -> Result<(), GraphError> {
    let mut kv = vec![0usize; graph.kv_layers.len()];
    let mut state: Vec<Vec<OpKind>> = vec![Vec::new(); graph.state_layers.len()];
    for node in &graph.nodes {
        let fail = |problem: String| Err(GraphError::Cache { label: node.label.clone(), problem });
        let (Some(kind), Some(layer)) = (node.op.cache(), node.cache) else { continue };
        match kind {
            CacheKind::Kv => {
                kv[layer] += 1;
                if kv[layer] > 1 {
                    return fail(format!("kv layer {layer} already has an attention; give each its own"));
                }
            }
            CacheKind::State => {
                let users = &mut state[layer];
                users.push(node.op.kind());
                let valid = matches!(
                    users[..],
                    [OpKind::SsmConv]
                        | [OpKind::SsmConv, OpKind::SsmScan | OpKind::DeltaScan]
                        | [OpKind::SsmStep]
                        | [OpKind::ShortConv]
                );
                if !valid {
                    let names: Vec<_> = users.iter().map(|k| k.name()).collect();
                    let names = names.join(", ");
                    return fail(format!(
                        "state layer {layer} is used by {names}; it takes ssm_conv then ssm_scan or delta_scan, or \
                         ssm_step, or short_conv"
                    ));
                }
            }
        }
    }
    Ok(())
}

fn check_outputs(graph: &Graph) -> Result<(), GraphError> {
    if graph.outputs.is_empty() {
        return Err(GraphError::NoOutput { graph: graph.name.clone() });
    }
    let mut seen = HashSet::new();
    for (name, value) in &graph.outputs {
        let fail = |problem: String| Err(GraphError::Name { what: "output", name: name.clone(), problem });
        if !is_word(name) {
            return fail("is not a word; use letters, digits and underscores".to_string());
        }
        if !seen.insert(name) {
            return fail("is named twice; give each output its own name".to_string());
        }
        match graph.types.get(value.index()) {
            None => {
                let place = format!("output `{name}`");
                return Err(GraphError::Undefined { place, what: value.to_string() });
            }
            Some(t) if t.elem.is_private() => {
                return fail(format!("is {t}, which is a kernel's own business; name what it was made of"));
            }
            Some(_) => {}
        }
        if graph.inputs.iter().any(|(input, _)| input == value) {
            return fail(format!("is the input {value} itself; name a computed value"));
        }
    }
    Ok(())
}
