//! The kernels: a file per op, or per few small ones, with its rows, its parameters and the binding of a call.

pub(crate) mod add;
pub(crate) mod binding;
pub(crate) mod concat;
pub(crate) mod declaration;
pub(crate) mod embed;
pub(crate) mod glu;
pub(crate) mod matmul;
pub(crate) mod moe_rows;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod rope;
pub(crate) mod round;
pub(crate) mod step;

use crate::arch::Arch;
use declaration::Declaration;

/// Every kernel of an architecture.
pub(crate) fn declarations(arch: Arch) -> Vec<Declaration> {
    let ops: &[fn(Arch) -> Vec<Declaration>] = &[
        embed::declare,
        norm::declare,
        rope::declare,
        add::declare,
        pointwise::declare,
        glu::declare,
        concat::declare,
        moe_rows::declare,
        round::declare,
    ];
    ops.iter().flat_map(|declare| declare(arch)).collect()
}
