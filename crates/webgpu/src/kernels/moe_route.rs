//! `moe_route`.

use mambo_kernel::{BackendError, Op, OpKind, RouteDims, Scoring, Site};

use super::binding::{Binding, Launch};
use super::declaration::Declaration;
use super::pointwise::source;
use crate::params::{Params, View, params};
use crate::source::{Source, Specialisation};

params! {
    struct MoeRouteParams { logits: View, ids: View, weights: View, bias: u32, scale: f32 }
}

source!(SOURCE, "moe_route", MoeRouteParams);

/// Experts whose scores and keys a workgroup's memory holds.
const MOST_EXPERTS: usize = 1024;

fn kernel(route: &RouteDims) -> Specialisation {
    Specialisation::new(&SOURCE)
        .define("EXPERTS", route.experts)
        .define("TOP_K", route.top_k)
        .define("GROUPS", route.groups)
        .define("TOP_GROUPS", route.top_groups)
        .define("SOFTMAX", usize::from(route.scoring == Scoring::Softmax))
        .define("NORMALIZE", usize::from(route.normalize))
}

pub(crate) fn declare() -> Vec<Declaration> {
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
                && (1..=route.experts).contains(&route.top_k)
                && route.groups > 0
                && route.top_groups <= route.groups
                && route.experts.is_multiple_of(route.groups)
        }
        _ => false,
    };
    vec![Declaration::new(OpKind::MoeRoute, "f32", kernels, bind).offering(|row| row.accepting(accepts))]
}

fn bind(binding: &mut Binding) -> Result<Vec<Launch>, BackendError> {
    let Op::MoeRoute(route) = binding.call.op else { binding.wrong_op() };
    let params = MoeRouteParams {
        logits: binding.input(0),
        ids: binding.output(0),
        weights: binding.output(1),
        bias: binding.vector(0, route.experts)?,
        scale: route.scale,
    };
    Ok(vec![Launch::by_row(kernel(&route), &params, 1, binding.rows())])
}
