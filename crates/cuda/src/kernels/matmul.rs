//! Products.

use mambo_kernel::{BackendError, WeightKey, WeightSource};
use mambo_tensor::DType;

use crate::loader::Loader;

/// A weight as products read it.
pub(crate) struct Packed {
    dims: [usize; 3],
}

/// Whether products read weights of this type.
pub(crate) fn is_supported(_dtype: DType) -> bool {
    false
}

/// The types that products read, for messages.
pub(crate) fn supported() -> String {
    String::new()
}

impl Packed {
    /// Brings a weight of so many experts, outputs and columns to the device.
    pub fn load(
        _loader: &mut Loader,
        _key: &WeightKey,
        _source: &dyn WeightSource,
        dims: [usize; 3],
    ) -> Result<Packed, BackendError> {
        Ok(Packed { dims })
    }

    /// Experts, outputs, columns.
    pub fn dims(&self) -> [usize; 3] {
        self.dims
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        0
    }
}
