//! `moe_matmul`: `y[t,j] = W[e]·x` with `e = ids[t,j]`, then the epilogue. Rows are sorted by expert on the device, by
//! the blocks themselves where there are few; experts that nobody chose are not read.

use mambo_kernel::{Op, OpKind};

use super::declaration::Declaration;
use super::matmul::{Product, declare_products};
use crate::arch::Arch;

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    declare_products(OpKind::MoeMatmul, |binding| match binding.call.op {
        Op::MoeMatmul { experts, out, epilogue, .. } => {
            let packed = binding.packed(0, [experts, out, binding.call.inputs[0].cols])?;
            Product { binding, packed, epilogue, ids: Some(binding.input(1)) }.launches()
        }
        _ => binding.wrong_op(),
    })
}
