//! Kernel rows of a backend that runs nothing: planning needs no machine.

use mambo_kernel::{Elem, KernelRow, Op, OpKind, Phase, Site};
use mambo_tensor::DType;

/// Name of the backend.
pub const NAME: &str = "fake/x1";

fn row(
    name: &str,
    op: OpKind,
    input: Elem,
    accepts: impl Fn(&Site) -> bool + Send + Sync + 'static,
) -> KernelRow {
    KernelRow { name: format!("fake:{}.{name}", op.name()), op, input, accepts: Box::new(accepts) }
}

/// Rows for every op; quantised products read 8-bit activations, others f32.
pub fn rows() -> Vec<KernelRow> {
    let mut rows = vec![
        row("table.f32", OpKind::Embed, Elem::I32, |_| true),
        row("step.f32", OpKind::SsmStep, Elem::F32, |site| {
            site.phase == Phase::Decode && site.weight_types == [DType::F32; 6]
        }),
    ];
    for op in [OpKind::Matmul, OpKind::MoeMatmul] {
        rows.push(row("vec.q4_0", op, Elem::Q8, |site| {
            site.phase == Phase::Decode && site.weight_types == [DType::Q4_0] && site.input_cols % 32 == 0
        }));
        rows.push(row("tile.q4_0", op, Elem::Q8, |site| {
            site.weight_types == [DType::Q4_0] && site.input_cols % 32 == 0
        }));
        rows.push(row("any.f32", op, Elem::F32, |site| site.weight_types == [DType::F32]));
    }
    let plain = [
        OpKind::RmsNorm,
        OpKind::Add,
        OpKind::Relu2,
        OpKind::Concat,
        OpKind::SsmConv,
        OpKind::SsmDt,
        OpKind::SsmScan,
        OpKind::GatedGroupNorm,
        OpKind::Attention,
        OpKind::MoeRoute,
        OpKind::GatherRows,
        OpKind::Quantize,
    ];
    rows.extend(plain.map(|op| row("row.f32", op, Elem::F32, |_| true)));
    rows.push(row("row.f32", OpKind::MoeCombine, Elem::F32, |site| matches!(site.op, Op::MoeCombine { .. })));
    rows
}

/// Matrices are q4_0, the router and everything small is f32.
pub fn weight_type(name: &str) -> Option<DType> {
    let quantised = ["_proj", "up", "down", "lm_head", "w"];
    let q4_0 = quantised.iter().any(|end| name.ends_with(end)) && !name.ends_with("conv");
    Some(if q4_0 { DType::Q4_0 } else { DType::F32 })
}
