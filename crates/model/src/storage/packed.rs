//! Integers in groups as AWQ and GPTQ store them: codes packed into words across the matrix, zeros packed likewise, and
//! scales. `value = scale · (code - zero)`.
//!
//! Must not know how codes are rewritten.

use mambo_checkpoint::TensorInfo;
use mambo_tensor::{Affine, AffineScale, DType};

use super::unpack::{Packed, Packing};
use super::{Dims, Files, Form, Module};
use crate::error::ModelError;

/// Widths of a code that are read; all of them divide a word.
pub(crate) const BITS: [usize; 3] = [2, 4, 8];

/// `qweight`, `qzeros`, `scales`, and with GPTQ `g_idx`.
pub(super) fn read<'c>(
    files: &Files<'c>,
    module: &str,
    codes: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let zeros = files.want_beside(module, "qzeros", codes)?;
    let scales = files.want_beside(module, "scales", codes)?;
    let &[rows, cols] = dims.want else {
        return Err(files.unsupported(codes, "packs stacked experts, which is not supported".to_owned()));
    };
    let (packing, bits) = packing(files, codes, dims, [rows, cols])?;
    let groups = scales.shape.dims().first().copied().unwrap_or(0).max(1);
    let group = cols.div_ceil(groups);
    files.check(scales, dims, &[groups, rows], &[DType::F16, DType::BF16, DType::F32])?;
    files.check(zeros, dims, &[groups, rows * bits / 32], &[DType::I32, DType::U32])?;
    if cols.div_ceil(group) != groups {
        return Err(files.wrong_shape(scales, dims, format!("whole groups of {cols} columns")));
    }
    check_settings(files, codes, bits, group, cols)?;
    let order = match files.beside(module, "g_idx") {
        Some(order) if packing == Packing::Gptq => own_order(files, order, dims, group, groups)?,
        _ => None,
    };
    // The largest of our groups that lie within one of the file's.
    let own =
        Affine::GROUPS.iter().rev().find(|own| group.is_multiple_of(**own) && cols.is_multiple_of(**own));
    let affine = own.and_then(|own| Affine::new(bits, *own, AffineScale::F32)).filter(|_| order.is_none());
    let zero_offset = if packing == Packing::Gptq { files.packed.zero_offset() } else { 0 };
    let scale_type = scales.dtype;
    let form = Packed { packing, bits, rows, cols, group, zero_offset, scale_type, affine };
    Ok(Module {
        dtype: affine.map_or(DType::F16, DType::Affine),
        form: Form::Packed(form),
        beside: [zeros, scales].into_iter().chain(order).collect(),
        ..super::as_stored(codes)
    })
}

/// AWQ packs eight outputs into a word, GPTQ as many inputs: the shape says which, and how wide a code is.
fn packing(
    files: &Files,
    codes: &TensorInfo,
    dims: Dims,
    [rows, cols]: [usize; 2],
) -> Result<(Packing, usize), ModelError> {
    let fits = |bits: usize, elems: usize| (elems * bits).is_multiple_of(32);
    for bits in BITS {
        for (packing, name, shape) in [
            (Packing::Awq, "awq", [cols, rows * bits / 32]),
            (Packing::Gptq, "gptq", [cols * bits / 32, rows]),
        ] {
            let is_whole = fits(bits, rows) && (packing == Packing::Awq || fits(bits, cols));
            let is_asked = files.packed.method.is_none_or(|method| method == name);
            if is_whole && is_asked && codes.shape.dims() == shape {
                files.check(codes, dims, &shape, &[DType::I32, DType::U32])?;
                return Ok((packing, bits));
            }
        }
    }
    let method = files.packed.method.unwrap_or("AWQ's or GPTQ's");
    Err(files.wrong_shape(codes, dims, format!("{method} codes of 2, 4 or 8 bits for {:?}", [rows, cols])))
}

/// Refuses tensors that contradict the config.
fn check_settings(
    files: &Files,
    codes: &TensorInfo,
    bits: usize,
    group: usize,
    cols: usize,
) -> Result<(), ModelError> {
    let settings = &files.packed;
    let problem = if let Some(said) = settings.bits.filter(|said| *said != bits) {
        format!("has codes of {bits} bits, but quantization_config.bits is {said}")
    } else if let Some(said) = settings.group.filter(|said| *said != group && (*said).min(cols) != group) {
        format!("has groups of {group}, but quantization_config.group_size is {said}")
    } else {
        return Ok(());
    };
    Err(files.unsupported(codes, problem))
}

/// The groups of columns, where they are not simply one after the other.
fn own_order<'c>(
    files: &Files<'c>,
    order: &'c TensorInfo,
    dims: Dims,
    group: usize,
    groups: usize,
) -> Result<Option<&'c TensorInfo>, ModelError> {
    files.check(order, dims, &[dims.cols()], &[DType::I32])?;
    let bytes = files.checkpoint.read(order)?;
    let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
    let mut is_plain = true;
    for (column, number) in numbers.enumerate() {
        if usize::try_from(number).is_ok_and(|number| number < groups) {
            is_plain &= number as usize == column / group;
            continue;
        }
        let problem = format!("puts column {column} into group {number}, but there are {groups}");
        return Err(files.unsupported(order, problem));
    }
    Ok((!is_plain).then_some(order))
}
