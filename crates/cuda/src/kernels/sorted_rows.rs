//! Rows that are rounded for experts' products of many rows, in the order of their experts: `quantize` and `moe_matmul`,
//! which then need not bring rows into that order. The bits are those of the calls.

use mambo_kernel::{BackendError, Call, Epilogue, Op};

use super::binding::Binding;
use super::matmul::Product;
use super::round;
use crate::activation::F16;
use crate::launch::Launch;

/// Whether calls are a rounding and the experts' product of what it makes, a row for a row.
pub(crate) fn is_found(calls: &[Call]) -> bool {
    let [quantize, product] = calls else { return false };
    quantize.op == Op::Quantize(F16)
        && matches!(product.op, Op::MoeMatmul { .. })
        && product.inputs[0] == quantize.outputs[0]
        && product.inputs[0].rows == product.outputs[0].rows
}

/// The launches by call; none where they have to run one by one.
pub(crate) fn bind(calls: &[Binding]) -> Result<Option<Vec<Vec<Launch>>>, BackendError> {
    let [quantize, binding] = calls else { return Ok(None) };
    let Op::MoeMatmul { experts, out, epilogue, .. } = binding.call.op else { return Ok(None) };
    if !round::fits_warps(quantize) || matches!(epilogue, Epilogue::Glu(_)) {
        return Ok(None);
    }
    let packed = binding.packed(0, [experts, out, binding.call.inputs[0].cols])?;
    let product = Product { binding, packed, epilogue, ids: Some(binding.input(1)) };
    let Some(sorted) = product.of_sorted_rows()? else { return Ok(None) };
    Ok(Some(vec![vec![sorted.sort, round::by_warps(quantize, sorted.order)], vec![sorted.product]]))
}
