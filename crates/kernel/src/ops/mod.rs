//! One contract per op: formula, tolerance with its reason, hard cases and the plain reference.

pub mod add;
pub mod attention;
pub mod bias;
pub mod choose;
pub mod concat;
pub mod delta_scan;
pub mod embed;
pub mod gated_group_norm;
pub mod gather_rows;
pub mod glu;
pub mod head_norm;
pub mod layer_norm;
pub mod matmul;
pub mod moe_bias;
pub mod moe_combine;
pub mod moe_matmul;
pub mod moe_route;
pub mod quantize;
pub mod relu2;
pub mod rms_norm;
pub mod rope;
pub mod short_conv;
pub mod soft_cap;
pub mod ssm_conv;
pub mod ssm_dt;
pub mod ssm_scan;
pub mod ssm_step;

use crate::case::Case;
use crate::op::OpKind;

/// The hard cases of an op. `split` has none: it is a view and never becomes a call. Those of `quantize` depend on the
/// type ([`quantize::cases`]).
pub fn cases(kind: OpKind) -> Vec<Case> {
    match kind {
        OpKind::Embed => embed::cases(),
        OpKind::RmsNorm => rms_norm::cases(),
        OpKind::Matmul => matmul::cases(),
        OpKind::Add => add::cases(),
        OpKind::Relu2 => relu2::cases(),
        OpKind::Split | OpKind::Quantize => Vec::new(),
        OpKind::Concat => concat::cases(),
        OpKind::SsmConv => ssm_conv::cases(),
        OpKind::SsmDt => ssm_dt::cases(),
        OpKind::SsmScan => ssm_scan::cases(),
        OpKind::GatedGroupNorm => gated_group_norm::cases(),
        OpKind::SsmStep => ssm_step::cases(),
        OpKind::Attention => attention::cases(),
        OpKind::MoeRoute => moe_route::cases(),
        OpKind::MoeMatmul => moe_matmul::cases(),
        OpKind::MoeCombine => moe_combine::cases(),
        OpKind::LayerNorm => layer_norm::cases(),
        OpKind::HeadNorm => head_norm::cases(),
        OpKind::Rope => rope::cases(),
        OpKind::Glu => glu::cases(),
        OpKind::Bias => bias::cases(),
        OpKind::SoftCap => soft_cap::cases(),
        OpKind::ShortConv => short_conv::cases(),
        OpKind::DeltaScan => delta_scan::cases(),
        OpKind::MoeBias => moe_bias::cases(),
        OpKind::GatherRows => gather_rows::cases(),
        OpKind::Choose => choose::cases(),
    }
}
