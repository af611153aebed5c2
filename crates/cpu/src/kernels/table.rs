//! The table of kernels: which rows the backend offers, and how a call of each op is bound.

use std::sync::Arc;

use mambo_kernel::{BackendError, Call, Elem, KernelRow, Op, OpKind, Operand, Phase};

use super::attention::Attention;
use super::copy::{Concat, GatherRows};
use super::embed::Embed;
pub(crate) use super::embed::Table;
use super::gated_group_norm::GatedGroupNorm;
use super::matmul::{self, AFFINE_BITS, MatmulCall, Packed, TYPES, affine_bits, is_decoded};
use super::moe_combine::MoeCombine;
use super::moe_matmul::{self, MoeMatmulCall};
use super::moe_route::{MAX_GROUPS, MoeRoute};
use super::pointwise::{Add, Relu2};
use super::quantize::{Quantize, SplitInTwo};
use super::rms_norm::RmsNorm;
use super::ssm_conv::{Filter, MAX_TAPS, SsmConv};
use super::ssm_dt::SsmDt;
use super::ssm_scan::SsmScan;
use super::ssm_step::SsmStep;
use super::{Kernel, bind};
use crate::isa::Isa;

/// The rows of an instruction set.
pub(crate) fn rows(isa: Isa) -> Vec<KernelRow> {
    let mut rows = Vec::new();
    for op in OpKind::ALL {
        let name = |types: &str| format!("cpu:{}.{isa}.{types}", op.name());
        match op {
            // A view; it never reaches a backend.
            OpKind::Split => {}
            OpKind::Matmul | OpKind::MoeMatmul => {
                rows.extend(TYPES.map(|(dtype, _)| KernelRow {
                    name: name(dtype.name()),
                    op,
                    input: matmul::input(isa, dtype),
                    accepts: Box::new(move |site| site.weight_types.first() == Some(&dtype)),
                }));
                rows.extend(AFFINE_BITS.map(|bits| KernelRow {
                    name: name(&format!("affine{bits}")),
                    op,
                    input: Elem::F32,
                    accepts: Box::new(move |site| {
                        site.weight_types.first().is_some_and(|d| affine_bits(*d) == Some(bits))
                    }),
                }));
                rows.push(KernelRow {
                    name: name("decoded"),
                    op,
                    input: Elem::F32,
                    accepts: Box::new(|site| site.weight_types.first().is_some_and(|d| is_decoded(*d))),
                });
            }
            _ => rows.push(KernelRow {
                name: name("f32"),
                op,
                input: if op == OpKind::Embed { Elem::I32 } else { Elem::F32 },
                accepts: Box::new(|site| match site.op {
                    Op::SsmStep { dims, .. } => site.phase == Phase::Decode && dims.taps <= MAX_TAPS,
                    Op::SsmConv(dims) => dims.taps <= MAX_TAPS,
                    Op::MoeRoute(route) => route.top_groups <= MAX_GROUPS && route.top_k <= route.experts,
                    _ => true,
                }),
            }),
        }
    }
    rows
}

/// A weight in the form its kernel reads.
#[derive(Clone)]
pub(crate) enum Weight {
    Packed(Arc<Packed>),
    Table(Arc<Table>),
    Vector(Arc<Vec<f32>>),
}

/// A call's weights, checked as they are taken.
pub(crate) struct Ports<'a> {
    pub names: Vec<&'a str>,
    pub weights: Vec<Weight>,
}

impl Ports<'_> {
    fn wrong(&self, port: usize, shape: String, problem: String) -> BackendError {
        BackendError::WeightShape { name: self.names[port].to_string(), shape, problem }
    }

    fn vector(&self, port: usize, len: usize) -> Result<Arc<Vec<f32>>, BackendError> {
        match &self.weights[port] {
            Weight::Vector(v) if v.len() == len => Ok(Arc::clone(v)),
            Weight::Vector(v) => {
                Err(self.wrong(port, format!("[{}]", v.len()), format!("but the call reads {len} values")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call reads a vector".into())),
        }
    }

    fn packed(&self, port: usize, want: [usize; 3], isa: Isa, x: Elem) -> Result<Arc<Packed>, BackendError> {
        match &self.weights[port] {
            Weight::Packed(p) if matmul::input(isa, p.dtype()) != x => {
                let problem = format!("of {}, but the call gives {} rows", p.dtype(), x.name());
                Err(self.wrong(port, format!("{want:?}"), problem))
            }
            Weight::Packed(p) if [p.experts(), p.out(), p.cols()] == want => Ok(Arc::clone(p)),
            Weight::Packed(p) => {
                let shape = format!("{:?}", [p.experts(), p.out(), p.cols()]);
                Err(self.wrong(port, shape, format!("but the call multiplies {want:?}")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call multiplies it".into())),
        }
    }

    fn table(&self, port: usize, cols: usize) -> Result<Arc<Table>, BackendError> {
        match &self.weights[port] {
            Weight::Table(t) if t.cols == cols => Ok(Arc::clone(t)),
            Weight::Table(t) => {
                let shape = format!("[{}, {}]", t.rows, t.cols);
                Err(self.wrong(port, shape, format!("but the call reads rows of {cols}")))
            }
            _ => Err(self.wrong(port, "another".into(), "but the call looks rows up".into())),
        }
    }
}

/// Ops whose kernels have a place for the rounded output: a call that `joined.rs` skips must not be lost here.
fn takes_rounding(op: OpKind) -> bool {
    use OpKind::{GatedGroupNorm, Matmul, MoeMatmul, RmsNorm, SsmStep};
    matches!(op, RmsNorm | GatedGroupNorm | SsmStep | Matmul | MoeMatmul)
}

/// Binds a call to its kernel, and to the place of its rounded output if it rounds that too.
pub(crate) fn prepare(
    isa: Isa,
    call: &Call,
    rounded: Option<Operand>,
    w: &Ports,
) -> Result<Box<dyn Kernel>, BackendError> {
    assert!(rounded.is_none() || takes_rounding(call.op.kind()), "{} does not round", call.op.kind().name());
    let x = call.inputs[0];
    let out = call.outputs[0];
    let cols = x.cols;
    let layer = call.cache.unwrap_or(0);
    let input = |i: usize| -> Operand { call.inputs[i] };
    Ok(match call.op {
        Op::Embed => bind(isa, Embed { ids: x, out, table: w.table(0, out.cols)? }),
        Op::RmsNorm { eps } => bind(isa, RmsNorm { x, out, rounded, weight: w.vector(0, cols)?, eps }),
        Op::Matmul { out: rows, epilogue } => {
            let weight = w.packed(0, [1, rows, cols], isa, x.elem)?;
            let residual = call.inputs.get(1).copied();
            matmul::prepare(isa, MatmulCall { weight, x, residual, out, rounded, epilogue })
        }
        Op::MoeMatmul { experts, top_k, out: rows, epilogue } => {
            let weight = w.packed(0, [experts, rows, cols], isa, x.elem)?;
            moe_matmul::prepare(
                isa,
                MoeMatmulCall { weight, x, ids: input(1), out, rounded, top_k, epilogue },
            )
        }
        Op::Add => bind(isa, Add { a: x, b: input(1), out }),
        Op::Relu2 => bind(isa, Relu2 { x, out }),
        Op::Concat => bind(isa, Concat { a: x, b: input(1), out }),
        Op::Quantize(Elem::BF16X2) => bind(isa, SplitInTwo { x, out }),
        Op::Quantize(_) => bind(isa, Quantize { x, out }),
        Op::GatherRows => bind(isa, GatherRows { x, wanted: input(1), out }),
        Op::GatedGroupNorm { groups, eps } => {
            let weight = w.vector(0, cols)?;
            bind(isa, GatedGroupNorm { y: x, z: input(1), out, rounded, weight, groups, eps })
        }
        Op::MoeRoute(route) => {
            let bias = w.vector(0, route.experts)?;
            bind(isa, MoeRoute { logits: x, ids: out, weights: call.outputs[1], bias, route })
        }
        Op::MoeCombine { top_k, residual } => {
            let residual = residual.then(|| input(2));
            bind(isa, MoeCombine { x, weights: input(1), residual, out, top_k })
        }
        Op::Attention(dims) => bind(isa, Attention { q: x, k: input(1), v: input(2), out, dims, layer }),
        Op::SsmDt => bind(isa, SsmDt { dt: x, out, bias: w.vector(0, cols)? }),
        Op::SsmConv(_) | Op::SsmScan(_) | Op::SsmStep { .. } => return prepare_ssm(isa, call, rounded, w),
        Op::Split { .. } => unreachable!("a split is an operand, not a call"),
    })
}

fn prepare_ssm(
    isa: Isa,
    call: &Call,
    rounded: Option<Operand>,
    w: &Ports,
) -> Result<Box<dyn Kernel>, BackendError> {
    let (x, out) = (call.inputs[0], call.outputs[0]);
    let layer = call.cache.unwrap_or(0);
    Ok(match call.op {
        Op::SsmConv(d) => {
            let weight = w.vector(0, d.conv_dim() * d.taps)?;
            let filter = Filter::new(&weight, w.vector(1, d.conv_dim())?);
            bind(isa, SsmConv { x, out, filter, layer, taps: d.taps })
        }
        Op::SsmScan(dims) => {
            let (a, d) = (w.vector(0, dims.heads)?, w.vector(1, dims.heads)?);
            bind(isa, SsmScan { xbc: x, dt: call.inputs[1], out, a, d, dims, layer })
        }
        Op::SsmStep { dims, eps } => {
            let weight = w.vector(0, dims.conv_dim() * dims.taps)?;
            let work = SsmStep {
                x,
                out,
                rounded,
                filter: Filter::new(&weight, w.vector(1, dims.conv_dim())?),
                dt_bias: w.vector(2, dims.heads)?,
                a: w.vector(3, dims.heads)?,
                d: w.vector(4, dims.heads)?,
                norm: w.vector(5, dims.inner())?,
                dims,
                eps,
                layer,
            };
            bind(isa, work)
        }
        _ => unreachable!("not an op of the mixer"),
    })
}
