//! Adapters, and opening one: which limits and features are asked for.

use std::fmt;

use crate::faults::Faults;
use crate::watcher::Arrivals;

/// What an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A card with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// What it does not say; browsers do not.
    Unknown,
    /// A program that computes on the processor.
    Software,
}

/// An adapter.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The number that `--device` takes: adapters with their own memory come first.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// What it is reached through, such as `vulkan`.
    pub api: String,
    /// The driver with its version, where it says.
    pub driver: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Largest buffer in bytes.
    pub max_buffer_bytes: u64,
    /// Largest part of a buffer that a kernel sees, in bytes.
    pub max_binding_bytes: u64,
    /// Bytes of workgroup memory that kernels may use.
    pub workgroup_bytes: usize,
    /// Whether it has 16-bit floats, subgroups and timestamps.
    pub features: [bool; 3],
    /// Lanes of a subgroup, fewest and most.
    pub subgroup_lanes: [u32; 2],
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.api)
    }
}

/// Why no device could be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoDevice {
    /// There is no adapter.
    #[error(
        "no GPU is reached through Vulkan, Metal, DX12 or WebGPU; install its driver, or use another backend"
    )]
    NoAdapter,
    /// There are fewer.
    #[error("there is no device {wanted}; {}", counted(*.count))]
    NoSuchDevice {
        /// The number asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// The adapter does not give a device.
    #[error("{name} cannot be opened: {reason}")]
    Refused {
        /// Its name.
        name: String,
        /// What it said.
        reason: String,
    },
    /// The adapter lacks what kernels need.
    #[error("{name} cannot run the kernels: {problem}")]
    TooSmall {
        /// Its name.
        name: String,
        /// What is missing.
        problem: String,
    },
}

fn counted(count: usize) -> String {
    if count == 1 { "the only one is device 0".into() } else { format!("devices are 0 to {}", count - 1) }
}

/// Which limits are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limits {
    /// The sizes of buffers that the adapter has.
    #[default]
    Adapter,
    /// Exactly what every WebGPU implementation has, and no features: for tests.
    Smallest,
}

/// The most workgroup memory that is asked for: with more, fewer workgroups share a processor.
const WORKGROUP_BYTES: u32 = 32 << 10;

/// An open device.
pub(crate) struct Device {
    pub info: DeviceInfo,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub faults: Faults,
    /// Told when results can be read, and when the device is lost.
    pub arrivals: Arrivals,
}

fn instance() -> wgpu::Instance {
    let backends = wgpu::Backends::PRIMARY;
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

fn info_of(number: usize, adapter: &wgpu::Adapter) -> DeviceInfo {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let known = [wgpu::Features::SHADER_F16, wgpu::Features::SUBGROUP, wgpu::Features::TIMESTAMP_QUERY];
    DeviceInfo {
        number,
        name: if info.name.is_empty() { "GPU".into() } else { info.name.clone() },
        api: match info.backend {
            wgpu::Backend::BrowserWebGpu => "browser".into(),
            api => format!("{api:?}").to_lowercase(),
        },
        driver: [info.driver, info.driver_info].join(" ").trim().to_owned(),
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
            wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
            wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
            wgpu::DeviceType::Cpu => DeviceKind::Software,
            wgpu::DeviceType::Other => DeviceKind::Unknown,
        },
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        workgroup_bytes: limits.max_compute_workgroup_storage_size as usize,
        features: known.map(|feature| features.contains(feature)),
        subgroup_lanes: [info.subgroup_min_size, info.subgroup_max_size],
    }
}

/// The adapters, those with their own memory first.
async fn adapters() -> Vec<wgpu::Adapter> {
    let instance = instance();
    #[cfg(not(target_family = "wasm"))]
    {
        let mut adapters = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
        adapters.sort_by_key(|adapter| info_of(0, adapter).kind);
        adapters
    }
    #[cfg(target_family = "wasm")]
    {
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        instance.request_adapter(&options).await.into_iter().collect()
    }
}

/// The devices of this machine.
#[cfg(not(target_family = "wasm"))]
pub fn devices() -> Vec<DeviceInfo> {
    let adapters = block_on(adapters());
    adapters.iter().enumerate().map(|(number, adapter)| info_of(number, adapter)).collect()
}

/// Waits for a future of this crate; natively they never wait for anything but the device.
#[cfg(not(target_family = "wasm"))]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

impl Device {
    /// Opens an adapter by its number.
    pub async fn open(number: usize, limits: Limits) -> Result<Device, NoDevice> {
        let adapters = adapters().await;
        let adapter = match adapters.get(number) {
            Some(adapter) => adapter,
            None if adapters.is_empty() => return Err(NoDevice::NoAdapter),
            None => return Err(NoDevice::NoSuchDevice { wanted: number, count: adapters.len() }),
        };
        let mut info = info_of(number, adapter);
        let own = adapter.limits();
        // Textures and the like are of no interest.
        let smallest = wgpu::Limits::default();
        let required_limits = match limits {
            Limits::Smallest => smallest,
            Limits::Adapter => wgpu::Limits {
                max_buffer_size: own.max_buffer_size,
                max_storage_buffer_binding_size: own.max_storage_buffer_binding_size,
                max_compute_workgroup_storage_size: own
                    .max_compute_workgroup_storage_size
                    .min(WORKGROUP_BYTES),
                ..smallest.or_worse_values_from(&own)
            },
        };
        check_limits(&info.name, &required_limits)?;
        info.max_buffer_bytes = required_limits.max_buffer_size;
        info.workgroup_bytes = required_limits.max_compute_workgroup_storage_size as usize;
        info.max_binding_bytes = required_limits.max_storage_buffer_binding_size;
        // For profiles: without it, calls are timed from the host.
        let required_features = match limits {
            Limits::Smallest => wgpu::Features::empty(),
            Limits::Adapter => adapter.features() & wgpu::Features::TIMESTAMP_QUERY,
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("mambo"),
            required_features,
            required_limits,
            ..Default::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) = opened
            .map_err(|error| NoDevice::Refused { name: info.name.clone(), reason: error.to_string() })?;
        let arrivals = Arrivals::default();
        let faults = Faults::of(&device, &arrivals);
        Ok(Device { info, device, queue, faults, arrivals })
    }

    /// Bytes of the largest shard of a weight: a multiple of a vector of four words.
    pub fn shard_bytes(&self) -> u64 {
        let most = self.info.max_binding_bytes.min(self.info.max_buffer_bytes);
        // Indices count words of four bytes in 32 bits, and vectors of four.
        most.min(1 << 34) / 16 * 16
    }
}

/// What kernels rely on: the defaults of WebGPU.
fn check_limits(name: &str, limits: &wgpu::Limits) -> Result<(), NoDevice> {
    let needs = [
        ("storage buffers", limits.max_storage_buffers_per_shader_stage, 5),
        ("invocations of a workgroup", limits.max_compute_invocations_per_workgroup, 256),
        ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, 16 << 10),
        ("workgroups along a dimension", limits.max_compute_workgroups_per_dimension, 65535),
    ];
    match needs.iter().find(|(_, has, needed)| has < needed) {
        None => Ok(()),
        Some((what, has, needed)) => {
            let problem = format!("it has {has} {what}, of which {needed} are needed");
            Err(NoDevice::TooSmall { name: name.to_owned(), problem })
        }
    }
}
