//! The kernels: a file per op, or per few small ones, with its rows, its parameters and the binding of a call.

pub(crate) mod attention;
pub(crate) mod binding;
pub(crate) mod choose;
pub(crate) mod declaration;
pub(crate) mod delta_scan;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod few;
pub(crate) mod glu;
pub(crate) mod matmul;
pub(crate) mod moe_route;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod quantize;
pub(crate) mod rope;
pub(crate) mod several;
pub(crate) mod slot;
pub(crate) mod ssm_conv;
pub(crate) mod ssm_scan;
pub(crate) mod ssm_step;
pub(crate) mod step;

use declaration::Declaration;

/// Every kernel.
pub(crate) fn declarations() -> Vec<Declaration> {
    let ops: &[fn() -> Vec<Declaration>] = &[
        attention::declare,
        choose::declare,
        delta_scan::declare,
        embed::declare,
        glu::declare,
        matmul::declare,
        moe_route::declare,
        norm::declare,
        pointwise::declare,
        quantize::declare,
        rope::declare,
        ssm_conv::declare,
        ssm_scan::declare,
        ssm_step::declare,
    ];
    ops.iter().flat_map(|declare| declare()).collect()
}
