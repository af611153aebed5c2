//! How many threads a step should use: each one more shortens the work and lengthens every barrier.
//!
//! If one thread needs `serial` seconds, n threads need `serial / n + barriers · n · BARRIER_SECONDS`, which is least
//! at `n = sqrt(serial / (barriers · BARRIER_SECONDS))`. The minimum is flat, so rough numbers do.

use mambo_kernel::{CallWork, StepShape};

/// Bytes of weights or states that one thread streams per second.
const BYTES_PER_SECOND: f64 = 10e9;
/// Seconds that each thread adds to a barrier.
const BARRIER_SECONDS: f64 = 0.5e-6;

/// What the calls of a program cost when one thread runs them.
pub(crate) struct SerialCosts {
    /// Work of each call, and operations per second of one thread.
    calls: Vec<(CallWork, f64)>,
    /// The answer for the step before: decoding asks the same question for many steps.
    last: Option<(StepShape, usize, usize)>,
}

/// Positions by which a sequence grows before the number of threads is looked at again.
const DEPTH_STEP: usize = 64;

impl SerialCosts {
    /// The costs of calls with this work, each at so many operations per second.
    pub fn new(calls: Vec<(CallWork, f64)>) -> SerialCosts {
        SerialCosts { calls, last: None }
    }

    /// Threads to use, at most `most`, for a step with this many barriers between calls; the few within calls do not
    /// matter.
    pub fn threads(&mut self, shape: StepShape, barriers: usize, most: usize) -> usize {
        let shape = StepShape { depth: shape.depth.next_multiple_of(DEPTH_STEP), ..shape };
        if let Some((_, _, threads)) = self.last.filter(|last| (last.0, last.1) == (shape, barriers)) {
            return threads;
        }
        let seconds = |(work, flops): &(CallWork, f64)| {
            work.streamed_bytes(&shape) / BYTES_PER_SECOND + work.flops(&shape) / flops
        };
        let serial: f64 = self.calls.iter().map(seconds).sum();
        let best = (serial / (barriers.max(1) as f64 * BARRIER_SECONDS)).sqrt();
        let threads = (best.round() as usize).clamp(1, most);
        self.last = Some((shape, barriers, threads));
        threads
    }
}

#[cfg(test)]
mod tests {
    use mambo_kernel::{CacheTypes, Call, Elem, Epilogue, Op, Operand, Place, Rows};

    use super::*;

    /// A hundred products of `width` columns and as many rows.
    fn products(width: usize) -> SerialCosts {
        let operand = Operand {
            place: Place::Arena(0),
            elem: Elem::F32,
            rows: Rows::TOKENS,
            cols: width,
            stride_bytes: 4 * width,
        };
        let call = Call {
            op: Op::Matmul { out: width, epilogue: Epilogue::None },
            kernel: 0,
            label: String::new(),
            inputs: vec![operand],
            outputs: vec![operand],
            rounded: None,
            weights: Vec::new(),
            cache: None,
            after: Vec::new(),
        };
        let work = CallWork::of(&call, (width * width) as u64, CacheTypes::default());
        SerialCosts::new(vec![(work, 100e9); 100])
    }

    #[test]
    fn small_steps_take_few_threads_and_large_ones_all() {
        let threads = |width: usize, tokens: usize| {
            let shape = StepShape { tokens, wanted: 1, segments: 1, depth: 0 };
            products(width).threads(shape, 100, 64)
        };
        assert_eq!([32, 512, 8192].map(|width| threads(width, 1)), [1, 8, 64]);
        assert_eq!([32, 512, 8192].map(|width| threads(width, 512)), [5, 64, 64]);
    }
}
