//! How long the calls of a step take: by the device's clock where it has one, else by the host's. Not in browsers.
#![cfg(not(target_family = "wasm"))]

use std::time::{Duration, Instant};

use mambo_kernel::{BackendError, StepInputs, Wait};

use crate::device::Device;
use crate::program::{Compiled, Part};
use crate::steps::ReadBack;

/// Times that a query set has at most: those of so many calls are taken at once.
const CALLS_AT_ONCE: usize = 1024;

/// Runs a step, every call in a pass of its own.
pub(crate) fn call_times(
    device: &Device,
    program: &Compiled,
    step: &StepInputs,
) -> Result<Vec<Duration>, BackendError> {
    let calls: Vec<usize> = (0..program.program.calls.len()).collect();
    if !device.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
        return Ok(calls.into_iter().map(|call| host_time(device, program, step, call)).collect());
    }
    let parts = calls.chunks(CALLS_AT_ONCE).map(|calls| device_times(device, program, step, calls));
    Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
}

/// A call by the host's clock, submission and waiting included.
fn host_time(device: &Device, program: &Compiled, step: &StepInputs, call: usize) -> Duration {
    let mut encoder = device.device.create_command_encoder(&Default::default());
    program.encode(&mut encoder, step, Part::Call(call));
    let begin = Instant::now();
    device.queue.submit([encoder.finish()]);
    device.device.poll(wgpu::PollType::wait_indefinitely()).ok();
    begin.elapsed()
}

/// Calls by the device's clock: from the beginning of the first dispatch to the end of the last one.
fn device_times(
    device: &Device,
    program: &Compiled,
    step: &StepInputs,
    calls: &[usize],
) -> Result<Vec<Duration>, BackendError> {
    let count = 2 * calls.len() as u32;
    let bytes = u64::from(count) * 8;
    let set = device.device.create_query_set(&wgpu::QuerySetDescriptor {
        label: Some("times of calls"),
        ty: wgpu::QueryType::Timestamp,
        count,
    });
    let resolved = device.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("times of calls"),
        size: bytes,
        usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    let mut encoder = device.device.create_command_encoder(&Default::default());
    for (place, call) in (0..).step_by(2).zip(calls) {
        let writes = wgpu::ComputePassTimestampWrites {
            query_set: &set,
            beginning_of_pass_write_index: Some(place),
            end_of_pass_write_index: Some(place + 1),
        };
        program.encode_timed(&mut encoder, step, Part::Call(*call), Some(writes));
    }
    encoder.resolve_query_set(&set, 0..count, &resolved, 0);
    let buffer = device.read_back(bytes as usize, "times of calls")?;
    encoder.copy_buffer_to_buffer(&resolved, 0, &buffer, 0, Some(bytes));
    let read = ReadBack::of(device, buffer, device.queue.submit([encoder.finish()]));
    while !read.has_arrived(device, Wait::Block, "times of calls")? {}
    let mut times = Vec::with_capacity(calls.len());
    let nanoseconds = f64::from(device.queue.get_timestamp_period());
    read.take(bytes as usize, |bytes| {
        times.extend(bytes.as_chunks::<16>().0.iter().map(|pair| {
            let [begin, end] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| pair[at + i])));
            Duration::from_nanos((end.saturating_sub(begin) as f64 * nanoseconds) as u64)
        }));
    })?;
    Ok(times)
}
