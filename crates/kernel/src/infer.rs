//! How types flow through ops: output types from input types, or a sentence saying what does not fit.

use crate::op::{Epilogue, Op};
use crate::value::{Elem, RowBase, Rows, ValueType};

/// The inputs of one op, with the questions inference asks of them.
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
    /// Output types for these input types, or a sentence saying what does not fit.
    ///
    /// `table_cols` is the width of the table of an [`Op::Embed`].
    pub fn infer(&self, inputs: &[ValueType], table_cols: usize) -> Result<Vec<ValueType>, String> {
        let name = self.kind().name();
        if inputs.len() != self.input_count() {
            return Err(format!("{name} takes {} inputs, got {}", self.input_count(), inputs.len()));
        }
        let ports = Ports { name, inputs };
        let x = inputs[0];
        match *self {
            Op::Embed => Ok(vec![ValueType::f32(x.rows, table_cols)]),
            Op::RmsNorm { .. } | Op::Relu2 | Op::SsmDt => Ok(vec![x]),
            Op::GatherRows => Ok(vec![ValueType { rows: Rows::WANTED, ..x }]),
            Op::Quantize(elem) if !elem.is_rounded() => {
                Err(format!("quantize to {}, which is not a rounded type", elem.name()))
            }
            Op::Quantize(elem) => Ok(vec![ValueType { elem, ..x }]),
            Op::Matmul { out, epilogue } => {
                let y = ValueType::f32(x.rows, out);
                if epilogue == Epilogue::Residual {
                    ports.want(1, y)?;
                }
                Ok(vec![y])
            }
            Op::Add => {
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
            Op::SsmConv(_) | Op::SsmScan(_) | Op::SsmStep { .. } | Op::GatedGroupNorm { .. } => {
                self.infer_ssm(&ports)
            }
            Op::Attention(a) => {
                ports.want_cols(0, a.q_heads * a.head_dim)?;
                ports.want_cols(1, a.kv_heads * a.head_dim)?;
                ports.want(2, inputs[1])?;
                Ok(vec![x])
            }
            Op::MoeRoute(_) | Op::MoeMatmul { .. } | Op::MoeCombine { .. } => self.infer_moe(&ports),
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
