//! Looks tensors up beside a module and reads the few numbers that are factors; failures name file and tensor.
//!
//! Must not know formats.

use mambo_checkpoint::{Checkpoint, TensorInfo};
use mambo_tensor::{DType, decode_row};

use super::Dims;
use crate::error::ModelError;
use crate::quantization::{MlxSettings, PackedSettings};

/// A checkpoint with what its config says about MLX groups.
pub(crate) struct Files<'c> {
    /// The files.
    pub checkpoint: &'c Checkpoint,
    /// Widths and groups of MLX modules.
    pub mlx: MlxSettings<'c>,
    /// What the config says about AWQ or GPTQ.
    pub packed: PackedSettings,
    /// Rows and columns of FP8 values that share a scale.
    pub square: [usize; 2],
}

impl<'c> Files<'c> {
    /// The tensor `suffix` of a module.
    pub fn beside(&self, module: &str, suffix: &str) -> Option<&'c TensorInfo> {
        self.checkpoint.tensor(&format!("{module}.{suffix}"))
    }

    /// The tensor `suffix` of a module, without which its codes mean nothing.
    pub fn want_beside(
        &self,
        module: &str,
        suffix: &str,
        codes: &TensorInfo,
    ) -> Result<&'c TensorInfo, ModelError> {
        self.beside(module, suffix).ok_or_else(|| ModelError::MissingScale {
            file: self.file(),
            tensor: format!("{module}.{suffix}"),
            codes: codes.name.clone(),
        })
    }

    /// Checks type and shape of a tensor that goes with codes.
    pub fn check(
        &self,
        tensor: &TensorInfo,
        dims: Dims,
        shape: &[usize],
        types: &[DType],
    ) -> Result<(), ModelError> {
        if !types.contains(&tensor.dtype) {
            let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
            let problem = format!("is {}, but {} is expected", tensor.dtype, names.join(" or "));
            return Err(self.unsupported(tensor, problem));
        }
        match tensor.shape.dims() == shape {
            true => Ok(()),
            false => Err(self.wrong_shape(tensor, dims, format!("{shape:?}"))),
        }
    }

    /// Factors on all values of a module, one or one for each stacked expert: finite and greater than zero.
    pub fn factors(&self, tensor: &TensorInfo, dims: Dims) -> Result<Vec<f32>, ModelError> {
        let (experts, elems) = (dims.experts(), tensor.shape.elems());
        if elems != 1 && elems != experts {
            let want = if experts > 1 { format!("[] or [{experts}]") } else { "[] or [1]".to_owned() };
            return Err(self.wrong_shape(tensor, dims, want));
        }
        self.positive(tensor)
    }

    /// All values of a tensor of scales: finite and greater than zero.
    pub fn positive(&self, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
        if !matches!(tensor.dtype, DType::F32 | DType::BF16 | DType::F16) {
            let problem = format!("is {}, but a scale is f32, bf16 or f16", tensor.dtype);
            return Err(self.unsupported(tensor, problem));
        }
        let mut values = vec![0.0; tensor.shape.elems()];
        let stored = self.checkpoint.read(tensor)?;
        decode_row(tensor.dtype, &stored, &mut values)
            .map_err(|e| self.unsupported(tensor, format!("cannot be decoded: {e}")))?;
        match values.iter().find(|v| !v.is_finite() || **v <= 0.0) {
            Some(bad) => Err(self.bad_scale(tensor, format!("holds the scale {bad}"))),
            None => Ok(values),
        }
    }

    /// The failure of a scale that cannot be one.
    pub fn bad_scale(&self, tensor: &TensorInfo, problem: String) -> ModelError {
        ModelError::BadScale { file: self.file(), tensor: tensor.name.clone(), problem }
    }

    /// The failure of a tensor in a form that is not read.
    pub fn unsupported(&self, tensor: &TensorInfo, problem: String) -> ModelError {
        ModelError::UnsupportedTensor { file: self.file(), tensor: tensor.name.clone(), problem }
    }

    /// The failure of a tensor with other dimensions than its weight needs.
    pub fn wrong_shape(&self, tensor: &TensorInfo, dims: Dims, want: String) -> ModelError {
        ModelError::WrongShape {
            file: self.file(),
            tensor: tensor.name.clone(),
            weight: dims.weight.name.clone(),
            want,
            got: format!("{:?}", tensor.shape.dims()),
        }
    }

    fn file(&self) -> String {
        self.checkpoint.source().to_owned()
    }
}
