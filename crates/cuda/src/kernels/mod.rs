//! The kernels: a file per op, or per few small ones, with its rows, its parameters and the binding of a call.

pub(crate) mod add;
pub(crate) mod attention;
pub(crate) mod binding;
pub(crate) mod choose;
pub(crate) mod concat;
pub(crate) mod declaration;
pub(crate) mod delta_scan;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gated_group_norm;
pub(crate) mod gated_matmul;
pub(crate) mod glu;
pub(crate) mod matmul;
pub(crate) mod moe_matmul;
pub(crate) mod moe_route;
pub(crate) mod moe_rows;
pub(crate) mod norm;
pub(crate) mod normed_matmul;
pub(crate) mod pointwise;
pub(crate) mod rope;
pub(crate) mod round;
pub(crate) mod short_conv;
pub(crate) mod slot;
pub(crate) mod sorted_rows;
pub(crate) mod ssm_conv;
pub(crate) mod ssm_dt;
pub(crate) mod ssm_scan;
pub(crate) mod ssm_step;
pub(crate) mod step;

use crate::arch::Arch;
use crate::source::Specialisation;
use declaration::Declaration;

/// Every kernel of an architecture.
pub(crate) fn declarations(arch: Arch) -> Vec<Declaration> {
    let ops: &[fn(Arch) -> Vec<Declaration>] = &[
        embed::declare,
        norm::declare,
        rope::declare,
        matmul::declare,
        moe_matmul::declare,
        add::declare,
        attention::declare,
        choose::declare,
        delta_scan::declare,
        gated_group_norm::declare,
        moe_route::declare,
        short_conv::declare,
        ssm_conv::declare,
        ssm_dt::declare,
        ssm_scan::declare,
        ssm_step::declare,
        pointwise::declare,
        glu::declare,
        concat::declare,
        moe_rows::declare,
        round::declare,
    ];
    ops.iter().flat_map(|declare| declare(arch)).collect()
}

/// Kernels of several calls, at the sizes that are met most.
pub(crate) fn fused_specialisations(arch: Arch) -> Vec<Specialisation> {
    [
        experts::specialisations(arch),
        gated_matmul::specialisations(arch),
        normed_matmul::specialisations(arch),
    ]
    .concat()
}

/// Sizes of kernels that the released models meet beside those that are declared.
pub(crate) fn released_sizes(arch: Arch) -> Vec<Specialisation> {
    [
        matmul::released_sizes(arch),
        attention::released_sizes(arch),
        slot::RELEASED_MIXERS.map(|dims| ssm_sizes(&dims, arch)).concat(),
    ]
    .concat()
}

/// The kernels of a mixer of this size, for states of every type.
fn ssm_sizes(dims: &mambo_kernel::SsmDims, arch: Arch) -> Vec<Specialisation> {
    [ssm_step::sizes(dims), ssm_scan::sizes(dims, arch)].concat()
}
