//! `matmul`: `y[o] = Σ_i W[o,i]·x[i]` for every row, then the epilogue.
//!
//! Weights are held in tiles of codes that kernels turn into f16 (or bf16) in registers (`form.rs`, `packed.rs`); few
//! rows and many rows have kernels of their own with the same order of sums (`product.rs`, `kernels/matmul.cuh`).

mod form;
mod kernels;
mod many;
mod packed;
mod product;

use mambo_kernel::{KernelRow, Op, OpKind, Site};
use mambo_tensor::DType;

use super::declaration::{Bind, Declaration};
use crate::arch::Arch;
use crate::source::Specialisation;
use form::{AFFINE_BITS, Held, OWN_TYPES, affine_bits, held, is_decoded};
pub(super) use form::{Form, TILE_COLS, TILE_ROWS, Tiles};
pub(super) use kernels::{MatmulParams, RowTile, SLICES, SUMS_STRIDE};
pub(crate) use packed::Packed;
pub(super) use product::Product;

/// Weight form: tiles, or rows, that products read.
const PACKED: &str = "packed";

/// Whether products read weights of this type.
pub(crate) fn is_supported(dtype: DType) -> bool {
    held(dtype).is_some()
}

/// The types that products read, for messages.
pub(crate) fn supported() -> String {
    let single = DType::all().filter(|dtype| is_supported(*dtype) && !matches!(dtype, DType::Affine(_)));
    let names: Vec<_> = single.map(DType::name).collect();
    format!("{} or affine groups", names.join(", "))
}

/// The tiles of a type that has any.
pub(super) fn tiles_of(dtype: DType) -> Option<Tiles> {
    match held(dtype)?.form {
        Form::Tiles(tiles) => Some(tiles),
        Form::Rows => None,
    }
}

/// One row of a product: for the types that `accepts` names, all held as `held` says.
fn declare_row(
    op: OpKind,
    types: &str,
    held: Held,
    accepts: fn(DType, &str) -> bool,
    bind: Bind,
) -> Declaration {
    let name = types.to_owned();
    // A second weight is a gate, which these kernels do not multiply.
    let is_for = move |site: &Site| matches!(site.weight_types, [dtype] if accepts(*dtype, &name));
    let change = |row: KernelRow| {
        row.reading(held.form.input()).computing(held.arithmetic()).holding(PACKED).accepting(is_for)
    };
    let mut all = kernels::all(op, held);
    all.push(packed::pack_kernel(held));
    Declaration::new(op, types, all, bind).offering(change)
}

/// The rows of a product: one for each type with tiles of its own, for widths of affine groups, and for types that are
/// decoded to f16.
pub(super) fn declare_products(op: OpKind, bind: Bind) -> Vec<Declaration> {
    let known = |dtype: DType| held(dtype).expect("listed types are held");
    let mut rows: Vec<Declaration> = OWN_TYPES
        .into_iter()
        .map(|own| declare_row(op, own.name(), known(own), |dtype, name| dtype.name() == name, bind))
        .collect();
    for bits in AFFINE_BITS {
        let example = DType::from_name(&format!("affine{bits}g64")).expect("a width of affine groups");
        let is_affine =
            |dtype, name: &str| affine_bits(dtype).is_some_and(|bits| name == format!("affine{bits}"));
        rows.push(declare_row(op, &format!("affine{bits}"), known(example), is_affine, bind));
    }
    rows.push(declare_row(op, "decoded_to_f16", known(DType::Q2K), |dtype, _| is_decoded(dtype), bind));
    rows
}

/// Kernels of numbers of rows that are not declared.
pub(crate) fn released_sizes(arch: Arch) -> Vec<Specialisation> {
    let mut all = Vec::new();
    for held in OWN_TYPES.into_iter().filter_map(held) {
        for op in [OpKind::Matmul, OpKind::MoeMatmul] {
            all.extend(product::sizes(op, held, arch));
        }
    }
    all
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    declare_products(OpKind::Matmul, |binding| match binding.call.op {
        Op::Matmul { out, epilogue } => {
            let packed = binding.packed(0, [1, out, binding.call.inputs[0].cols])?;
            Product { binding, packed, epilogue, ids: None }.launches()
        }
        _ => binding.wrong_op(),
    })
}
