//! Types of a node's outputs from what it reads. Adds to `Op::infer` what only whole graphs can get
//! wrong: element types, weight shapes, and sizes too large to multiply.

use mambo_kernel::{Elem, Epilogue, Op, Rows, SsmDims, ValueType};

use crate::error::GraphError;
use crate::graph::WeightDecl;

/// Every size in a graph is at most this, so that no product of sizes overflows.
pub(crate) const MAX_SIZE: usize = 1 << 28;

/// Infers the output types of one node and checks everything it reads.
pub(crate) fn infer_node(
    op: &Op,
    label: &str,
    inputs: &[ValueType],
    weights: &[&WeightDecl],
) -> Result<Vec<ValueType>, GraphError> {
    let fail = |problem| GraphError::Type { label: label.to_string(), problem };
    check_parameters(op).map_err(fail)?;
    let table_cols = match (op, weights.first()) {
        (Op::Embed, Some(table)) => table.shape.last().copied().unwrap_or(0),
        _ => 0,
    };
    let outputs = op.infer(inputs, table_cols).map_err(fail)?;
    check_elements(op, inputs).map_err(fail)?;
    check_rows(op, inputs).map_err(fail)?;
    check_weights(op, label, inputs, weights)?;
    if let Some(large) = outputs.iter().find(|t| t.cols == 0 || t.cols > MAX_SIZE) {
        return Err(fail(format!("{} gives {large}, and columns must be 1 to {MAX_SIZE}", op.kind().name())));
    }
    Ok(outputs)
}

fn check_ssm(d: &SsmDims) -> Result<(), String> {
    check_sizes(&[d.heads, d.head_dim, d.state, d.groups, d.taps])?;
    match d.heads % d.groups {
        0 => Ok(()),
        _ => Err(format!("{} heads are not divided by {} groups", d.heads, d.groups)),
    }
}

fn check_sizes(sizes: &[usize]) -> Result<(), String> {
    match sizes.iter().find(|s| **s == 0 || **s > MAX_SIZE) {
        Some(size) => Err(format!("size {size} is outside 1 to {MAX_SIZE}")),
        None => Ok(()),
    }
}

/// Refuses parameters with which inference itself would overflow or divide by zero.
fn check_parameters(op: &Op) -> Result<(), String> {
    let check_eps = |eps: f32| match eps.is_finite() && eps >= 0.0 {
        true => Ok(()),
        false => Err(format!("epsilon {eps} is not a finite number of at least zero")),
    };
    match op {
        Op::RmsNorm { eps } => check_eps(*eps),
        Op::Matmul { out, .. } => check_sizes(&[*out]),
        Op::Split { start, len } => check_sizes(&[(*start).max(1), *len]),
        Op::SsmConv(d) | Op::SsmScan(d) => check_ssm(d),
        Op::SsmStep { dims, eps } => check_eps(*eps).and(check_ssm(dims)),
        Op::GatedGroupNorm { groups, eps } => check_eps(*eps).and(check_sizes(&[*groups])),
        Op::Attention(a) => {
            check_sizes(&[a.q_heads, a.kv_heads, a.head_dim])?;
            match a.q_heads % a.kv_heads {
                0 => Ok(()),
                _ => Err(format!("{} query heads are not divided by {} key heads", a.q_heads, a.kv_heads)),
            }
        }
        Op::MoeRoute(r) => {
            check_sizes(&[r.experts, r.top_k, r.groups, r.top_groups])?;
            if !r.scale.is_finite() {
                return Err(format!("scale {} of the router is not finite", r.scale));
            }
            match r.top_k <= r.experts && r.top_groups <= r.groups && r.experts % r.groups == 0 {
                true => Ok(()),
                false => Err(format!(
                    "router picks {} of {} experts in {} of {} groups",
                    r.top_k, r.experts, r.top_groups, r.groups
                )),
            }
        }
        Op::MoeMatmul { epilogue: Epilogue::Residual, .. } => {
            Err("moe_matmul has no residual epilogue".to_string())
        }
        Op::MoeMatmul { experts, top_k, out, .. } => check_sizes(&[*experts, *top_k, *out]),
        Op::MoeCombine { top_k, .. } => check_sizes(&[*top_k]),
        Op::Quantize(_) => Err("quantize is inserted by lowering and never stands in a graph".to_string()),
        Op::Embed | Op::Add | Op::Relu2 | Op::Concat | Op::SsmDt | Op::GatherRows => Ok(()),
    }
}

fn check_elements(op: &Op, inputs: &[ValueType]) -> Result<(), String> {
    for (i, input) in inputs.iter().enumerate() {
        let want = match (op, i) {
            (Op::Embed, 0) | (Op::MoeMatmul { .. }, 1) | (Op::GatherRows, 1) => Elem::I32,
            _ => Elem::F32,
        };
        if input.elem != want {
            let (op, want) = (op.kind().name(), want.name());
            return Err(format!("input {i} of {op} is {input}, expected {want} elements"));
        }
    }
    Ok(())
}

/// Checks the row counts that `Op::infer` leaves open.
fn check_rows(op: &Op, inputs: &[ValueType]) -> Result<(), String> {
    let want = |i: usize, rows: Rows| match inputs[i].rows == rows {
        true => Ok(()),
        false => Err(format!("input {i} of {} is {}, expected {rows} rows", op.kind().name(), inputs[i])),
    };
    match op {
        Op::Embed => match inputs[0].cols {
            1 => Ok(()),
            _ => Err(format!("embed reads {}, expected one id per row", inputs[0])),
        },
        Op::SsmConv(_) | Op::SsmStep { .. } | Op::MoeRoute(_) => want(0, Rows::TOKENS),
        Op::SsmScan(_) => want(0, Rows::TOKENS).and(want(1, Rows::TOKENS)),
        Op::Attention(_) => want(0, Rows::TOKENS).and(want(1, Rows::TOKENS)),
        Op::MoeMatmul { .. } => want(1, Rows::TOKENS),
        Op::MoeCombine { .. } => want(1, Rows { times: 1, ..inputs[0].rows }),
        Op::GatherRows => {
            want(0, Rows::TOKENS)?;
            match inputs[1] == ValueType::i32(Rows::WANTED, 1) {
                true => Ok(()),
                false => Err(format!("gather_rows takes the wanted rows as input 1, got {}", inputs[1])),
            }
        }
        _ => Ok(()),
    }
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
