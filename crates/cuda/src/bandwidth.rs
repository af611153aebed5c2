//! How fast the device reads its memory.

use std::sync::Arc;

use mambo_kernel::BackendError;

use crate::device::DeviceInfo;
use crate::driver::{Context, Event, Stream};
use crate::launch::Launch;
use crate::memory::DeviceBuffer;
use crate::modules::Modules;
use crate::params::{CStruct, Ptr, c_struct};
use crate::source::{Source, Specialisation};

c_struct! {
    struct BandwidthParams { data: Ptr<u8>, vectors: u64, never: Ptr<u32> }
}

static SOURCE: Source = Source {
    stem: "bandwidth",
    text: include_str!("../kernels/bandwidth.cu"),
    structs: &[BandwidthParams::c_text],
};

/// Blocks of each processor.
const BLOCKS_PER_PROCESSOR: u32 = 8;
/// Times that memory is read; the fastest counts.
const RUNS: usize = 5;

/// The kernel.
pub(crate) fn kernel() -> Specialisation {
    Specialisation::new(&SOURCE, "bandwidth")
}

/// GB/s at which the device reads so many bytes of its memory in a plain loop.
pub(crate) fn read_bandwidth(
    context: &Arc<Context>,
    stream: &Stream,
    modules: &mut Modules,
    device: &DeviceInfo,
    bytes: usize,
) -> Result<f64, BackendError> {
    let data = DeviceBuffer::zeroed(context, stream, bytes, "measuring bandwidth")?;
    let params = BandwidthParams { data: data.ptr(), vectors: bytes as u64 / 16, never: data.ptr() };
    let launch =
        Launch::new(kernel(), &params).grid([device.processors * BLOCKS_PER_PROCESSOR, 1, 1]).block(512);
    modules.prepare(std::iter::once(&launch))?;
    let mut fastest = f32::INFINITY;
    for _ in 0..RUNS {
        let (begin, end) = (Event::new(context, true)?, Event::new(context, true)?);
        begin.record(stream)?;
        modules.launch(&launch, stream, false)?;
        end.record(stream)?;
        end.wait("measuring bandwidth")?;
        fastest = fastest.min(end.milliseconds_since(&begin)?);
    }
    Ok(bytes as f64 / f64::from(fastest) / 1e6)
}
