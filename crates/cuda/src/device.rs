//! The GPUs of this machine, and why they cannot be used.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use crate::arch::Arch;
use crate::driver::reason;
use crate::kernels::binding::DeviceFacts;

/// The oldest driver whose calls are all there, as the driver counts: CUDA 12.8.
const OLDEST_DRIVER: i32 = 12080;

/// Why there is no GPU to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// No driver is installed.
    #[error("no NVIDIA driver is installed (libcuda was not found); install driver 570 or newer")]
    NoDriver,
    /// The driver finds none.
    #[error(
        "the NVIDIA driver finds no GPU; see whether `nvidia-smi` lists it, and whether this process may use it \
         (CUDA_VISIBLE_DEVICES, `--gpus all` for containers)"
    )]
    NoDevice,
    /// The driver is too old.
    #[error("the NVIDIA driver supports CUDA {0}.{1}, but 12.8 is needed; install driver 570 or newer")]
    OldDriver(i32, i32),
    /// The driver found none, or failed.
    #[error(
        "the NVIDIA driver says: {0}; see whether `nvidia-smi` works, and restart or reinstall the driver if not"
    )]
    Driver(String),
    /// There is no GPU of this number.
    #[error("there is no GPU {wanted}; this machine has {count}, counted from 0")]
    NoSuchDevice {
        /// The number that was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU is too old.
    #[error(
        "{name} has compute capability {}.{}, but 8.0 is needed (Ampere, 2020); choose another GPU or use the CPU",
        .arch.major, .arch.minor
    )]
    OldGpu {
        /// Its name.
        name: String,
        /// Its compute capability.
        arch: Arch,
    },
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number.
    pub index: usize,
    /// What it is sold as.
    pub name: String,
    /// Its compute capability.
    pub arch: Arch,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The CUDA version that the driver supports.
    pub driver: (i32, i32),
    /// Streaming multiprocessors.
    pub processors: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) raw: sys::CUdevice,
}

impl DeviceInfo {
    pub(crate) fn facts(&self) -> DeviceFacts {
        DeviceFacts { arch: self.arch, processors: self.processors, shared_bytes: self.shared_bytes }
    }

    /// Whether the backend can run on it.
    pub fn check(&self) -> Result<(), NoGpu> {
        match self.arch >= Arch::OLDEST {
            true => Ok(()),
            false => Err(NoGpu::OldGpu { name: self.name.clone(), arch: self.arch }),
        }
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.arch)
    }
}

/// The GPUs of this machine, in the driver's order.
pub fn devices() -> Result<Vec<DeviceInfo>, NoGpu> {
    // SAFETY: asks the system for the library, whose initialisers have no requirements.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoGpu::NoDriver);
    }
    let driver_says = |result: CUresult| match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(NoGpu::NoDevice),
        result => Err(NoGpu::Driver(reason(result))),
    };
    let mut version = 0;
    // SAFETY: the library is there, and the pointer is to a number.
    driver_says(unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let driver = (version / 1000, version % 1000 / 10);
    if version < OLDEST_DRIVER {
        return Err(NoGpu::OldDriver(driver.0, driver.1));
    }
    // SAFETY: the first call of a process; more do nothing.
    driver_says(unsafe { sys::cuInit(0) })?;
    let mut count = 0;
    // SAFETY: the driver was initialised.
    driver_says(unsafe { sys::cuDeviceGetCount(&mut count) })?;
    if count == 0 {
        return Err(NoGpu::NoDevice);
    }
    (0..count).map(|index| device(index, driver).map_err(|result| NoGpu::Driver(reason(result)))).collect()
}

/// One GPU, if the backend can run on it.
pub fn usable_device(index: usize) -> Result<DeviceInfo, NoGpu> {
    let mut all = devices()?;
    if index >= all.len() {
        return Err(NoGpu::NoSuchDevice { wanted: index, count: all.len() });
    }
    let device = all.swap_remove(index);
    device.check().map(|()| device)
}

fn device(index: i32, driver: (i32, i32)) -> Result<DeviceInfo, CUresult> {
    let ok = |result: CUresult| if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(result) };
    let mut raw = 0;
    // SAFETY: the driver was initialised, and the pointer is to a handle.
    ok(unsafe { sys::cuDeviceGet(&mut raw, index) })?;
    let mut name = [0; 256];
    // SAFETY: the length is the array's.
    ok(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, raw) })?;
    // SAFETY: the driver ends the name with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory_bytes = 0;
    // SAFETY: the pointer is to a number.
    ok(unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, raw) })?;
    let attribute = |attribute: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to a number.
        ok(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, raw) })?;
        Ok(value as u32)
    };
    use CUdevice_attribute::*;
    let arch = Arch {
        major: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    Ok(DeviceInfo {
        index: index as usize,
        name,
        arch,
        memory_bytes: memory_bytes as u64,
        driver,
        processors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        raw,
    })
}
