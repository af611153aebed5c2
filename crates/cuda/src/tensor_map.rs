//! Matrices as the hardware that copies boxes of them knows them.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys;
use mambo_kernel::BackendError;

use crate::driver::check;
use crate::params::{CStruct, CType, Ptr};

/// Columns and rows of a box: a row of a box is 128 bytes, over which its 16-byte parts are swizzled.
const BOX_COLS: u32 = 64;
pub(crate) const BOX_ROWS: u32 = 16;

/// The driver's description of a matrix, which kernels get among their parameters.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorMap {
    words: [u64; 16],
}

impl CType for TensorMap {
    fn c_name() -> String {
        "TensorMap".to_owned()
    }
}

impl CStruct for TensorMap {
    fn c_text() -> String {
        format!(
            "#define BOX_ROWS {BOX_ROWS}\nstruct __align__(64) TensorMap {{ unsigned long long words[16]; }};\n"
        )
    }
}

impl TensorMap {
    /// Rows of 16-bit values, `stride` bytes from one to the next, of which 64 columns of 16 rows are copied at a time.
    /// What a box has beyond them is zeros. Nothing is described where memory is only being counted, without an address.
    pub fn of_rows(first: Ptr<u8>, stride: u32, rows: u32, cols: usize) -> Result<TensorMap, BackendError> {
        if first == Ptr::NULL {
            return Ok(TensorMap { words: [0; 16] });
        }
        let mut map = MaybeUninit::<sys::CUtensorMap>::uninit();
        let (sizes, strides) = ([cols as u64, u64::from(rows)], [u64::from(stride)]);
        let (corner, steps) = ([BOX_COLS, BOX_ROWS], [1, 1]);
        // SAFETY: every array has as many entries as the driver reads for two dimensions, and it fills the map where it
        // reports success. The address is kept, not read.
        let opaque = unsafe {
            let result = sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                2,
                first.address() as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                corner.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            );
            check(result, "describing rows to the copying hardware")?;
            map.assume_init().opaque
        };
        Ok(TensorMap { words: opaque })
    }
}
