//! FP8 with a scale for each square of the matrix, as DeepSeek and Qwen release it. No type of ours has such scales:
//! the values are held as bf16, rounded where a scale is no power of two.

use mambo_checkpoint::TensorInfo;
use mambo_tensor::{DType, decode_row, encode_row};

use super::{Dims, Files, Form, Module};
use crate::error::ModelError;

/// A matrix of FP8 values with scales for squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Squares {
    /// Columns of the matrix.
    pub cols: usize,
    /// Rows and columns that share a scale.
    pub size: [usize; 2],
    /// Type of the scales.
    pub scale_type: DType,
}

/// `weight` f8_e4m3 and `weight_scale_inv`, which despite its name is multiplied with.
pub(super) fn read<'c>(
    files: &Files<'c>,
    codes: &'c TensorInfo,
    scales: &'c TensorInfo,
    dims: Dims,
) -> Result<Module<'c>, ModelError> {
    let &[rows, cols] = dims.want else {
        return Err(files.unsupported(
            codes,
            "has scales for squares of stacked experts, which is not supported".to_owned(),
        ));
    };
    files.check(codes, dims, dims.want, &[DType::F8E4M3])?;
    let size = files.square;
    let shape = [rows.div_ceil(size[0]), cols.div_ceil(size[1])];
    files.check(scales, dims, &shape, &[DType::F32, DType::BF16, DType::F16])?;
    files.positive(scales)?;
    let form = Form::Squares(Squares { cols, size, scale_type: scales.dtype });
    Ok(Module { dtype: DType::BF16, form, beside: vec![scales], ..super::as_stored(codes) })
}

impl Squares {
    /// The matrix in bf16.
    pub fn widen(self, codes: &[u8], scales: &[u8]) -> Vec<u8> {
        let Squares { cols, size: [square_rows, square_cols], scale_type } = self;
        let mut factors = vec![0.0; scales.len() / scale_type.block_bytes()];
        decode_row(scale_type, scales, &mut factors).expect("scales are plain floats");
        let (mut values, mut out) = (vec![0.0; cols], vec![0; 2 * codes.len()]);
        let per_row = cols.div_ceil(square_cols);
        for (row, (codes, out)) in codes.chunks_exact(cols).zip(out.chunks_exact_mut(2 * cols)).enumerate() {
            decode_row(DType::F8E4M3, codes, &mut values).expect("one byte is one value");
            let factors = &factors[row / square_rows * per_row..][..per_row];
            for (values, factor) in values.chunks_mut(square_cols).zip(factors) {
                values.iter_mut().for_each(|value| *value *= factor);
            }
            encode_row(DType::BF16, &values, out).expect("plain values of any number");
        }
        out
    }
}
