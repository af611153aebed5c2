//! Read bandwidth, measured with a plain loop: what streaming kernels are compared with.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_kernel::BackendError;

use crate::clock::Clock;
use crate::memory::Buffer;
use crate::team::Team;

/// Words a thread reads before it takes the next part.
const PART: usize = 1 << 18;
/// Passes over the memory; the fastest counts.
const PASSES: usize = 4;

/// Reads `bytes` of fresh memory with all threads and returns GB/s.
pub(crate) fn read_bandwidth(team: &mut Team, clock: Clock, bytes: usize) -> Result<f64, BackendError> {
    let len = (bytes / 4).next_multiple_of(PART).max(PART);
    let mut data: Buffer<i32> = Buffer::zeroed(len, "measuring bandwidth")?;
    // Untouched pages may all be the same zero page.
    data.iter_mut().step_by(1024).for_each(|v| *v = 1);
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let next = AtomicUsize::new(0);
        let begin = clock.now();
        team.run(&|_| {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= len / PART {
                    return;
                }
                let mut sums = [0i32; 64];
                for chunk in data[part * PART..(part + 1) * PART].as_chunks::<64>().0 {
                    for (sum, value) in sums.iter_mut().zip(chunk) {
                        *sum = sum.wrapping_add(*value);
                    }
                }
                black_box(sums);
            }
        });
        best = best.min(clock.since(begin).as_secs_f64());
    }
    Ok(len as f64 * 4.0 / best / 1e9)
}
