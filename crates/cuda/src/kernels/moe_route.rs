//! `moe_route`.

use mambo_kernel::{BackendError, Op, OpKind, RouteDims, Scoring, Site};

use super::binding::Binding;
use super::declaration::Declaration;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

c_struct! {
    struct MoeRouteParams {
        step: Ptr<StepTable>,
        logits: View,
        ids: View,
        weights: View,
        bias: Ptr<f32>,
        scale: f32,
    }
}

static SOURCE: Source = Source {
    stem: "moe_route",
    text: include_str!("../../kernels/moe_route.cu"),
    structs: &[MoeRouteParams::c_text],
};

/// Rows of a block, a warp each.
const WARPS: u32 = 4;
/// Experts whose scores a warp keeps in registers.
const MOST_EXPERTS: usize = 1024;

fn kernel(route: &RouteDims) -> Specialisation {
    define(Specialisation::new(&SOURCE, "moe_route"), route)
}

/// A kernel that chooses so.
pub(super) fn define(kernel: Specialisation, route: &RouteDims) -> Specialisation {
    kernel
        .define("EXPERTS", route.experts)
        .define("TOP_K", route.top_k)
        .define("GROUPS", route.groups)
        .define("TOP_GROUPS", route.top_groups)
        .define("SOFTMAX", u32::from(route.scoring == Scoring::Softmax))
        .define("NORMALIZE", u32::from(route.normalize))
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let released = |scoring, experts, top_k, groups, top_groups| {
        kernel(&RouteDims { scoring, experts, top_k, groups, top_groups, normalize: true, scale: 1.0 })
    };
    let kernels = vec![
        released(Scoring::Sigmoid, 128, 6, 1, 1),
        released(Scoring::Sigmoid, 512, 22, 1, 1),
        released(Scoring::Sigmoid, 256, 8, 8, 4),
        released(Scoring::Softmax, 512, 10, 1, 1),
    ];
    let accepts = |site: &Site| match site.op {
        Op::MoeRoute(route) => {
            route.experts <= MOST_EXPERTS
                && route.top_k <= route.experts
                && route.groups > 0
                && route.top_groups <= route.groups
                && route.experts.is_multiple_of(route.groups)
        }
        _ => false,
    };
    vec![Declaration::new(OpKind::MoeRoute, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeRoute(route) = binding.call.op else { binding.wrong_op() };
    let params = MoeRouteParams {
        step: binding.step,
        logits: binding.input(0),
        ids: binding.output(0),
        weights: binding.output(1),
        bias: binding.vector(0, route.experts)?,
        scale: route.scale,
    };
    let blocks = binding.rows().div_ceil(WARPS);
    Ok(vec![Launch::new(kernel(&route), &params).grid([blocks, 1, 1]).block(32 * WARPS)])
}
