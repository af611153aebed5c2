//! `embed`.

use mambo_tensor::DType;

use crate::memory::DeviceBuffer;

/// A table on the device.
pub(crate) struct Table {
    pub data: DeviceBuffer,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}
