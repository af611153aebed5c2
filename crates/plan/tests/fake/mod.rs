//! Kernel rows of a backend that runs nothing: planning needs no machine.

#![allow(dead_code, reason = "each test program uses its part")]

use mambo_kernel::{Elem, KernelRow, Op, OpKind, Phase, PrivateElem, Site};
use mambo_tensor::DType;

/// Name of the backend.
pub const NAME: &str = "fake/x1";

/// Blocks of 32 values in 48 bytes. Nothing runs, so nothing is ever encoded.
static Q8_ELEM: PrivateElem = PrivateElem {
    name: "q8",
    row_bytes: |cols| cols.div_ceil(32) * 48,
    encode: |_| unreachable!("planning encodes nothing"),
    decode: |_, _| unreachable!("planning decodes nothing"),
    error: 0.0,
};

/// The activation type of quantised products.
pub const Q8: Elem = Elem::Private(&Q8_ELEM);

fn row(name: &str, op: OpKind, accepts: impl Fn(&Site) -> bool + Send + Sync + 'static) -> KernelRow {
    KernelRow::new(format!("fake:{}.{name}", op.name()), op).accepting(accepts)
}

/// Rows for every op; quantised products read 8-bit activations, others f32. Norms of
/// decode programs can round what they write.
pub fn rows() -> Vec<KernelRow> {
    let mut rows = vec![
        row("table.f32", OpKind::Embed, |_| true),
        row("step.f32", OpKind::SsmStep, |site| {
            site.phase == Phase::Decode && site.weight_types == [DType::F32; 6]
        }),
    ];
    let is_q4_0 = |site: &Site| site.weight_types == [DType::Q4_0] && site.input_cols().is_multiple_of(32);
    for op in [OpKind::Matmul, OpKind::MoeMatmul] {
        let vector = move |site: &Site| site.phase == Phase::Decode && is_q4_0(site);
        rows.push(row("vec.q4_0", op, vector).reading(Q8));
        rows.push(row("tile.q4_0", op, is_q4_0).reading(Q8));
        rows.push(row("any.f32", op, |site| site.weight_types == [DType::F32]));
    }
    let rounds = |site: &Site, to: Elem| site.phase == Phase::Decode && to == Q8;
    rows.push(row("row.f32", OpKind::RmsNorm, |_| true).rounding(rounds));
    let plain = [
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
        OpKind::Choose,
        OpKind::Quantize,
    ];
    rows.extend(plain.map(|op| row("row.f32", op, |_| true)));
    rows.push(row("row.f32", OpKind::MoeCombine, |site| matches!(site.op, Op::MoeCombine { .. })));
    rows
}

/// Matrices are q4_0, the router and everything small is f32.
pub fn weight_type(name: &str) -> Option<DType> {
    let quantised = ["_proj", "up", "down", "lm_head", "w"];
    let q4_0 = quantised.iter().any(|end| name.ends_with(end)) && !name.ends_with("conv");
    Some(if q4_0 { DType::Q4_0 } else { DType::F32 })
}
