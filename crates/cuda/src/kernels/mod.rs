//! The kernels: a file per op with its row, its parameters and the binding of a call.

pub(crate) mod add;
pub(crate) mod binding;
pub(crate) mod declaration;
pub(crate) mod embed;
pub(crate) mod matmul;
pub(crate) mod moe_matmul;

use crate::arch::Arch;
use declaration::Declaration;

/// Every kernel of an architecture.
pub(crate) fn declarations(arch: Arch) -> Vec<Declaration> {
    let ops: [fn(Arch) -> Vec<Declaration>; 3] = [add::declare, matmul::declare, moe_matmul::declare];
    ops.into_iter().flat_map(|declare| declare(arch)).collect()
}
