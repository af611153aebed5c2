//! `embed`.

use mambo_kernel::{BackendError, OpKind};
use mambo_tensor::DType;

use super::binding::Binding;
use super::declaration::{Declaration, TABLE};
use super::pointwise;
use crate::arch::Arch;
use crate::launch::Launch;
use crate::memory::DeviceBuffer;
use crate::params::{CStruct, Ptr, View, c_struct};
use crate::source::{Source, Specialisation};
use crate::step_table::StepTable;

/// A table on the device.
pub(crate) struct Table {
    pub data: DeviceBuffer,
    /// Factors of the rows, where any is not 1.
    pub scales: Option<DeviceBuffer>,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

impl Table {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.data.bytes() + self.scales.as_ref().map_or(0, DeviceBuffer::bytes)
    }
}

/// Types that are held as they are stored; others are decoded to f32 as they are loaded.
const STORED: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Whether a table of this type is held as it is stored.
pub(crate) fn is_read_as_stored(dtype: DType) -> bool {
    STORED.contains(&dtype)
}

c_struct! {
    struct EmbedParams { step: Ptr<StepTable>, out: View, table: Ptr<u8>, scales: Ptr<f32> }
}

static SOURCE: Source =
    Source { stem: "embed", text: include_str!("../../kernels/embed.cu"), structs: &[EmbedParams::c_text] };

fn kernel(dtype: DType) -> Specialisation {
    let index = STORED.iter().position(|stored| *stored == dtype);
    Specialisation::new(&SOURCE, "embed").define("STORED", index.expect("tables are held in these types"))
}

pub(crate) fn declare(_: Arch) -> Vec<Declaration> {
    let kernels = STORED.map(kernel).to_vec();
    vec![Declaration::new(OpKind::Embed, "f32", kernels, bind).offering(|row| row.holding(TABLE))]
}

fn bind(binding: &Binding) -> Result<Vec<Launch>, BackendError> {
    let out = binding.output(0);
    let table = binding.table(0, out.cols as usize)?;
    let scales = table.scales.as_ref().map_or(Ptr::NULL, DeviceBuffer::ptr);
    let params = EmbedParams { step: binding.step, out, table: table.data.ptr(), scales };
    let grid = pointwise::grid(binding.rows(), out.cols);
    Ok(vec![Launch::new(kernel(table.dtype), &params).grid(grid).block(256)])
}
