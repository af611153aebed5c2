//! The GPUs of this machine as `doctor` shows them, and why they are not used.

use mambo_cuda::{CudaBackend, DeviceInfo, devices};
use mambo_engine::human_bytes;
use serde_json::{Value, json};

use crate::args::BackendArgs;
use crate::bandwidth::gpu_bandwidth;
use crate::open;

/// What there is.
pub struct Gpus {
    /// An object for each.
    pub list: Vec<Value>,
    /// Why none is used, if none is.
    pub problem: Option<String>,
}

/// The GPU that commands use unless told otherwise.
pub fn usable() -> Option<usize> {
    CudaBackend::check(&open::gpu_options(0)).is_ok().then_some(0)
}

/// Asks the driver.
pub fn describe() -> Gpus {
    let problem = CudaBackend::check(&open::gpu_options(0)).err().map(|error| error.to_string());
    let list = devices().unwrap_or_default().iter().map(to_json).collect();
    Gpus { list, problem }
}

fn to_json(device: &DeviceInfo) -> Value {
    let place = BackendArgs { device: Some(device.index), ..BackendArgs::default() };
    let measured = open::gpu(place).and_then(|mut gpu| gpu_bandwidth(&mut gpu));
    json!({
        "device": device.index,
        "name": device.name,
        "architecture": device.arch.to_string(),
        "memory_bytes": device.memory_bytes,
        "driver_cuda_version": format!("{}.{}", device.driver.0, device.driver.1),
        "bandwidth_bytes_per_second": measured.ok(),
    })
}

/// The lines of a description of this machine.
pub fn text(machine: &Value) -> String {
    let mut lines = Vec::new();
    for gpu in machine["gpus"].as_array().into_iter().flatten() {
        let words = |name: &str| gpu[name].as_str().unwrap_or_default();
        let rate = gpu["bandwidth_bytes_per_second"].as_f64();
        lines.push(format!(
            "{}: {}, {}, {}, driver for CUDA {}{}",
            gpu["device"],
            words("name"),
            words("architecture"),
            gpu["memory_bytes"].as_u64().map_or("unknown".to_owned(), human_bytes),
            words("driver_cuda_version"),
            rate.map_or(String::new(), |rate| format!(", reads {:.0} GB/s", rate / 1e9)),
        ));
    }
    if let Some(problem) = machine["gpu_problem"].as_str() {
        lines.push(format!("none is used: {problem}"));
    }
    format!("gpus        {}\n", lines.join("\n            "))
}
