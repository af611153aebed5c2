//! How types flow through ops: output types from input types, or a sentence saying what does not fit.

use crate::dims::{Activation, Attention, SsmDims};
use crate::op::{Epilogue, Op};
use crate::rope::Rope;
use crate::value::{Elem, RowBase, Rows, ValueType};

/// Every size is at most this, so that no product of sizes overflows.
pub const MAX_SIZE: usize = 1 << 28;

/// The inputs of one op, with the checks that inference makes.
struct Ports<'a> {
    name: &'static str,
    inputs: &'a [ValueType],
}

impl Ports<'_> {
    fn want_cols(&self, port: usize, cols: usize) -> Result<(), String> {
        let got = self.inputs[port].cols;
        if got == cols {
            Ok(())
        } else {
            Err(format!("input {port} of {} has {got} columns, expected {cols}", self.name))
        }
    }

    fn want(&self, port: usize, ty: ValueType) -> Result<(), String> {
        let got = self.inputs[port];
        if got == ty { Ok(()) } else { Err(format!("input {port} of {} is {got}, expected {ty}", self.name)) }
    }
}

impl Op {
    /// Whether its parameters are possible, or a sentence saying what is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        check_parameters(self)
    }

    /// Output types for these input types, or a sentence saying what does not fit.
    ///
    /// `table_cols` is the width of the table of an [`Op::Embed`].
    pub fn infer(&self, inputs: &[ValueType], table_cols: usize) -> Result<Vec<ValueType>, String> {
        let name = self.kind().name();
        if inputs.len() != self.input_count() {
            return Err(format!("{name} takes {} inputs, got {}", self.input_count(), inputs.len()));
        }
        check_parameters(self)?;
        check_elements(self, inputs)?;
        check_rows(self, inputs)?;
        let ports = Ports { name, inputs };
        let x = inputs[0];
        match *self {
            Op::Embed => Ok(vec![ValueType::f32(x.rows, table_cols)]),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Relu2 | Op::SsmDt => Ok(vec![x]),
            Op::Bias | Op::SoftCap { .. } => Ok(vec![x]),
            Op::HeadNorm { head_dim, .. } | Op::Rope(Rope { head_dim, .. }) => {
                match x.cols.is_multiple_of(head_dim) {
                    true => Ok(vec![x]),
                    false => Err(format!("{name} of heads of {head_dim} reads {x}")),
                }
            }
            Op::GatherRows => Ok(vec![ValueType { rows: Rows::WANTED, ..x }]),
            Op::Choose => Ok(vec![ValueType::i32(x.rows, 1)]),
            Op::Quantize(elem) => Ok(vec![ValueType { elem, ..x }]),
            Op::Matmul { out, epilogue } => {
                let y = ValueType::f32(x.rows, out);
                if epilogue == Epilogue::Residual {
                    ports.want(1, y)?;
                }
                Ok(vec![y])
            }
            Op::Add | Op::Glu(_) => {
                ports.want(1, x)?;
                Ok(vec![x])
            }
            Op::Split { start, len } => match start.checked_add(len) {
                Some(end) if len > 0 && end <= x.cols => Ok(vec![ValueType { cols: len, ..x }]),
                _ => Err(format!("split {start}+{len} is outside {x}")),
            },
            Op::Concat => {
                ports.want(1, ValueType { cols: inputs[1].cols, ..x })?;
                Ok(vec![ValueType { cols: x.cols + inputs[1].cols, ..x }])
            }
            Op::SsmConv(_)
            | Op::SsmScan(_)
            | Op::SsmStep { .. }
            | Op::GatedGroupNorm { .. }
            | Op::ShortConv(_)
            | Op::DeltaScan(_) => self.infer_ssm(&ports),
            Op::Attention(Attention { dims: a, .. }) => {
                ports.want_cols(0, a.q_heads * a.head_dim)?;
                ports.want_cols(1, a.kv_heads * a.head_dim)?;
                ports.want(2, inputs[1])?;
                Ok(vec![x])
            }
            Op::MoeRoute(_) | Op::MoeMatmul { .. } | Op::MoeCombine { .. } | Op::MoeBias { .. } => {
                self.infer_moe(&ports)
            }
        }
    }

    fn infer_ssm(&self, ports: &Ports) -> Result<Vec<ValueType>, String> {
        let x = ports.inputs[0];
        match *self {
            Op::SsmConv(d) => {
                ports.want_cols(0, d.conv_dim())?;
                Ok(vec![x])
            }
            Op::SsmScan(d) => {
                ports.want_cols(0, d.conv_dim())?;
                ports.want_cols(1, d.heads)?;
                Ok(vec![ValueType { cols: d.inner(), ..x }])
            }
            Op::ShortConv(d) => {
                ports.want_cols(0, 3 * d.inner())?;
                Ok(vec![ValueType { cols: d.inner(), ..x }])
            }
            Op::DeltaScan(d) => {
                ports.want_cols(0, d.conv_dim())?;
                ports.want_cols(1, d.heads)?;
                ports.want(2, ports.inputs[1])?;
                Ok(vec![ValueType { cols: d.inner(), ..x }])
            }
            Op::SsmStep { dims, .. } => {
                ports.want_cols(0, dims.in_proj())?;
                Ok(vec![ValueType { cols: dims.inner(), ..x }])
            }
            Op::GatedGroupNorm { groups, .. } => {
                ports.want(1, x)?;
                if groups == 0 || !x.cols.is_multiple_of(groups) {
                    return Err(format!("{groups} norm groups do not divide {} channels", x.cols));
                }
                Ok(vec![x])
            }
            _ => unreachable!("only ops of the mixer come here"),
        }
    }

    fn infer_moe(&self, ports: &Ports) -> Result<Vec<ValueType>, String> {
        let x = ports.inputs[0];
        match *self {
            Op::MoeRoute(r) => {
                ports.want_cols(0, r.experts)?;
                let weights = ValueType { cols: r.top_k, ..x };
                Ok(vec![ValueType { elem: Elem::I32, ..weights }, weights])
            }
            Op::MoeMatmul { top_k, out, .. } => {
                ports.want_cols(1, top_k)?;
                let rows = Rows { base: RowBase::Tokens, times: top_k };
                if x.rows != Rows::TOKENS && x.rows != rows {
                    return Err(format!("moe_matmul reads {x}, expected T or T*{top_k} rows"));
                }
                Ok(vec![ValueType::f32(rows, out)])
            }
            Op::MoeBias { top_k, .. } => {
                ports.want_cols(1, top_k)?;
                match x.rows.times == top_k {
                    true => Ok(vec![x]),
                    false => Err(format!("moe_bias reads {x}, expected T*{top_k} rows")),
                }
            }
            Op::MoeCombine { top_k, residual } => {
                ports.want_cols(1, top_k)?;
                if x.rows.times != top_k {
                    return Err(format!("moe_combine reads {x}, expected T*{top_k} rows"));
                }
                let y = ValueType::f32(Rows { base: x.rows.base, times: 1 }, x.cols);
                if residual {
                    ports.want(2, y)?;
                }
                Ok(vec![y])
            }
            _ => unreachable!("only ops of the experts come here"),
        }
    }
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
        Op::RmsNorm { eps } | Op::LayerNorm { eps } => check_eps(*eps),
        Op::HeadNorm { head_dim, eps } => check_eps(*eps).and(check_sizes(&[*head_dim])),
        Op::Rope(r) => check_rope(r),
        Op::SoftCap { cap } => check_positive("cap", *cap),
        Op::Glu(activation) => check_activation(activation),
        Op::Matmul { out, epilogue } => check_sizes(&[*out]).and(check_epilogue(epilogue)),
        Op::Split { start, len } => check_sizes(&[(*start).max(1), *len]),
        Op::SsmConv(d) | Op::SsmScan(d) | Op::DeltaScan(d) => check_ssm(d),
        Op::ShortConv(d) => match *d {
            SsmDims { heads: 1, head_dim, state: 0, groups: 1, taps } => check_sizes(&[head_dim, taps]),
            _ => Err("short_conv has one head without a state".to_owned()),
        },
        Op::SsmStep { dims, eps } => check_eps(*eps).and(check_ssm(dims)),
        Op::GatedGroupNorm { groups, eps } => check_eps(*eps).and(check_sizes(&[*groups])),
        Op::Attention(attention) => {
            let a = attention.dims;
            check_sizes(&[a.q_heads, a.kv_heads, a.head_dim, attention.window.unwrap_or(1)])?;
            check_positive("scale", attention.scale)?;
            check_positive("soft_cap", attention.soft_cap.unwrap_or(1.0))?;
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
        Op::MoeMatmul { experts, top_k, out, epilogue } => {
            check_sizes(&[*experts, *top_k, *out]).and(check_epilogue(epilogue))
        }
        Op::MoeCombine { top_k, .. } => check_sizes(&[*top_k]),
        Op::MoeBias { experts, top_k } => check_sizes(&[*experts, *top_k]),
        Op::Quantize(elem) if !elem.is_private() => {
            Err(format!("quantize to {}, which is no backend's private type", elem.name()))
        }
        Op::Quantize(_) => Ok(()),
        Op::Embed | Op::Add | Op::Relu2 | Op::Bias | Op::Concat => Ok(()),
        Op::SsmDt | Op::GatherRows | Op::Choose => Ok(()),
    }
}

fn check_activation(activation: &Activation) -> Result<(), String> {
    match activation {
        Activation::ClampedSilu { alpha, limit } => {
            check_positive("alpha", *alpha).and(check_positive("limit", *limit))
        }
        Activation::Silu | Activation::Sigmoid | Activation::GeluTanh | Activation::Gelu => Ok(()),
    }
}

fn check_epilogue(epilogue: &Epilogue) -> Result<(), String> {
    match epilogue {
        Epilogue::Glu(activation) => check_activation(activation),
        Epilogue::None | Epilogue::Relu2 | Epilogue::Residual => Ok(()),
    }
}

fn check_positive(what: &str, value: f32) -> Result<(), String> {
    match value.is_finite() && value > 0.0 {
        true => Ok(()),
        false => Err(format!("{what} {value} is not a finite number above zero")),
    }
}

fn check_rope(r: &Rope) -> Result<(), String> {
    check_sizes(&[r.head_dim, r.rotary])?;
    if r.rotary > r.head_dim || !r.rotary.is_multiple_of(2) {
        return Err(format!("{} of {} channels cannot be rotated in pairs", r.rotary, r.head_dim));
    }
    if !(r.base.is_finite() && r.base > 1.0) {
        return Err(format!("base {} of the rotary positions is not a finite number above one", r.base));
    }
    match r.frequencies(None).iter().all(|f| f.is_finite()) && r.magnitude().is_finite() {
        true => Ok(()),
        false => Err(format!("{:?} gives frequencies that are not finite", r.scaling)),
    }
}

fn check_elements(op: &Op, inputs: &[ValueType]) -> Result<(), String> {
    for (i, input) in inputs.iter().enumerate() {
        let want = op.kind().input_elems()[i];
        // Kernels may read the first input in a type of their own.
        if input.elem != want && !(i == 0 && want == Elem::F32 && input.elem.is_private()) {
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
        Op::SsmConv(_) | Op::SsmStep { .. } | Op::ShortConv(_) => want(0, Rows::TOKENS),
        Op::MoeRoute(_) | Op::Rope(_) => want(0, Rows::TOKENS),
        Op::DeltaScan(_) => want(0, Rows::TOKENS).and(want(1, Rows::TOKENS)),
        Op::SsmScan(_) => want(0, Rows::TOKENS).and(want(1, Rows::TOKENS)),
        Op::Attention(_) => want(0, Rows::TOKENS).and(want(1, Rows::TOKENS)),
        Op::MoeMatmul { .. } | Op::MoeBias { .. } => want(1, Rows::TOKENS),
        Op::Choose => want(0, Rows::WANTED),
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
