//! Products.

use mambo_kernel::{BackendError, WeightKey, WeightSource};

use crate::loader::Loader;

/// A weight as products read it.
pub(crate) struct Packed {
    dims: [usize; 3],
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
}
