//! Types of a node's outputs from what it reads. Adds the shapes of weights to what `Op::infer` checks.

use mambo_kernel::{MAX_SIZE, Op, ValueType};

use crate::error::GraphError;
use crate::graph::WeightDecl;

/// Infers the output types of one node and checks everything it reads.
pub(crate) fn infer_node(
    op: &Op,
    label: &str,
    inputs: &[ValueType],
    weights: &[&WeightDecl],
) -> Result<Vec<ValueType>, GraphError> {
    let fail = |problem| GraphError::Type { label: label.to_string(), problem };
    let table_cols = match (op, weights.first()) {
        (Op::Embed, Some(table)) => table.shape.last().copied().unwrap_or(0),
        _ => 0,
    };
    if let Op::Quantize(_) = op {
        return Err(fail("quantize is inserted by lowering and never stands in a graph".to_string()));
    }
    let outputs = op.infer(inputs, table_cols).map_err(fail)?;
    check_weights(op, label, inputs, weights)?;
    if let Some(large) = outputs.iter().find(|t| t.cols == 0 || t.cols > MAX_SIZE) {
        return Err(fail(format!("{} gives {large}, and columns must be 1 to {MAX_SIZE}", op.kind().name())));
    }
    Ok(outputs)
}

fn check_weights(
    op: &Op,
    label: &str,
    inputs: &[ValueType],
    weights: &[&WeightDecl],
) -> Result<(), GraphError> {
    let ports = op.weight_ports(inputs);
    if ports.len() != weights.len() {
        return Err(GraphError::Count {
            label: label.to_string(),
            op: op.kind().name(),
            what: "weights",
            want: ports.len(),
            got: weights.len(),
        });
    }
    for (port, weight) in ports.iter().zip(weights) {
        let fits = port.shape.len() == weight.shape.len()
            && port.shape.iter().zip(&weight.shape).all(|(want, got)| *want == 0 || want == got);
        if !fits {
            return Err(GraphError::WeightShape {
                label: label.to_string(),
                weight: weight.name.clone(),
                port: port.name,
                want: port.shape.clone(),
                got: weight.shape.clone(),
            });
        }
    }
    Ok(())
}
