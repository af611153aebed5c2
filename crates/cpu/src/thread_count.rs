//! How many threads a step should use: each one more shortens the work and lengthens every barrier.
//!
//! If one thread needs `serial` seconds, n threads need `serial / n + barriers · n · barrier`, which is least at
//! `n = sqrt(serial / (barriers · barrier))`. The minimum is flat, so rough numbers do for large models. Of a small one
//! nobody knows whether its weights come from memory or from cache, nor how long this machine's cores take to tell each
//! other something; there the numbers that may be best are tried, and what they took decides.

use std::collections::HashMap;
use std::time::Duration;

use mambo_kernel::{CallWork, StepShape};

/// Bytes of weights or states that one thread reads per second from memory, and from cache.
const BYTES_PER_SECOND: [f64; 2] = [10e9, 60e9];
/// Seconds that each thread adds to a barrier: at least, and where cores are slow to hear of each other.
const BARRIER_SECONDS: [f64; 2] = [0.5e-6, 3e-6];

/// What the calls of a program cost when one thread runs them.
pub(crate) struct SerialCosts {
    /// Work of each call, and operations per second of one thread.
    calls: Vec<(CallWork, f64)>,
    /// The bounds for the step before: decoding asks the same question for many steps.
    last: Option<(StepShape, usize, [usize; 2])>,
    /// What was tried, by the next power of two of a step's tokens and the bounds.
    trials: HashMap<(usize, [usize; 2]), Trials>,
}

/// Positions by which a sequence grows before the number of threads is looked at again.
const DEPTH_STEP: usize = 64;

impl SerialCosts {
    /// The costs of calls with this work, each at so many operations per second.
    pub fn new(calls: Vec<(CallWork, f64)>) -> SerialCosts {
        SerialCosts { calls, last: None, trials: HashMap::new() }
    }

    /// What tells the number of threads, at most `most`, for a step with this many barriers between calls; the few within
    /// calls do not matter.
    pub fn trials(&mut self, shape: StepShape, barriers: usize, most: usize) -> &mut Trials {
        let bounds = self.bounds(shape, barriers, most);
        let kind = (shape.tokens.next_power_of_two(), bounds);
        self.trials.entry(kind).or_insert_with(|| Trials::between(bounds))
    }

    /// The fewest and the most threads that may be best.
    fn bounds(&mut self, shape: StepShape, barriers: usize, most: usize) -> [usize; 2] {
        let shape = StepShape { depth: shape.depth.next_multiple_of(DEPTH_STEP), ..shape };
        if let Some((_, _, bounds)) = self.last.filter(|last| (last.0, last.1) == (shape, barriers)) {
            return bounds;
        }
        let best = |bytes_per_second: f64, barrier_seconds: f64| {
            let seconds = |(work, flops): &(CallWork, f64)| {
                work.streamed_bytes(&shape) / bytes_per_second + work.flops(&shape) / flops
            };
            let serial: f64 = self.calls.iter().map(seconds).sum();
            let best = (serial / (barriers.max(1) as f64 * barrier_seconds)).sqrt();
            (best.round() as usize).clamp(1, most)
        };
        let bounds =
            [best(BYTES_PER_SECOND[1], BARRIER_SECONDS[1]), best(BYTES_PER_SECOND[0], BARRIER_SECONDS[0])];
        self.last = Some((shape, barriers, bounds));
        bounds
    }
}

/// Steps after which another number of threads is tried again: what else runs on the machine changes.
const TRY_EVERY: u32 = 256;
/// Steps that a trial takes; the first of them wakes threads and does not count.
const TRIAL: u32 = 3;
/// Share of a new time in the mean.
const WEIGHT: f64 = 0.25;
/// A time counts as at most so many times the mean: the system may have run something else.
const MOST_CHANGE: f64 = 2.0;

/// What steps of one kind took with each number of threads.
#[derive(Clone, Debug)]
pub(crate) struct Trials {
    /// Numbers of threads, and the mean seconds of a step with each that was tried.
    times: Vec<(usize, Option<f64>)>,
    current: usize,
    /// Steps with the current number so far, and until another is chosen.
    steps: u32,
    until: u32,
    /// Counts trials, so that all numbers have their turn.
    turn: usize,
}

impl Trials {
    /// Tries both bounds and halves of the upper one between them.
    fn between([least, most]: [usize; 2]) -> Trials {
        let halves = std::iter::successors(Some(most), |threads| Some(threads / 2));
        let numbers = halves.take_while(|threads| *threads > least).chain([least]);
        let times = numbers.map(|threads| (threads, None)).collect();
        Trials { times, current: 0, steps: 0, until: TRIAL, turn: 0 }
    }

    /// Threads of the next step.
    pub fn threads(&self) -> usize {
        self.times[self.current].0
    }

    /// Learns what a step with that many threads took.
    pub fn note(&mut self, took: Duration) {
        if self.times.len() == 1 {
            return;
        }
        self.steps += 1;
        if self.steps > 1 {
            let (_, mean) = &mut self.times[self.current];
            let took = took.as_secs_f64();
            *mean = Some(mean.map_or(took, |old| old + WEIGHT * (took.min(MOST_CHANGE * old) - old)));
        }
        if self.steps == self.until {
            self.choose();
        } else if self.until == TRY_EVERY && self.best() != self.current {
            // Something else runs on the machine now: steps with this number take longer than another's did.
            (self.current, self.steps) = (self.best(), 0);
        }
    }

    /// The number that took the least; what was not tried yet counts as best.
    fn best(&self) -> usize {
        let seconds = |index: &usize| self.times[*index].1.unwrap_or(0.0);
        let all = 0..self.times.len();
        all.min_by(|a, b| seconds(a).total_cmp(&seconds(b))).expect("one number is there")
    }

    /// The best number after a trial, and another one for a trial after that.
    fn choose(&mut self) {
        let best = self.best();
        let is_tried = self.times[best].1.is_some();
        (self.current, self.until) = match self.until == TRIAL && is_tried {
            true => (best, TRY_EVERY),
            false if is_tried => {
                self.turn += 1;
                let other = self.turn % (self.times.len() - 1);
                (other + usize::from(other >= best), TRIAL)
            }
            false => (best, TRIAL),
        };
        self.steps = 0;
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
        let bounds = |width: usize, tokens: usize| {
            let shape = StepShape { tokens, wanted: 1, segments: 1, depth: 0 };
            products(width).bounds(shape, 100, 64)
        };
        assert_eq!([32, 512, 8192].map(|width| bounds(width, 1)), [[1, 1], [2, 8], [29, 64]]);
        assert_eq!([32, 512, 8192].map(|width| bounds(width, 512)), [[2, 5], [30, 64], [64, 64]]);
    }

    /// Runs steps that take so many microseconds with each number of threads; how many took each number.
    fn run(trials: &mut Trials, steps: usize, took: impl Fn(usize) -> u64) -> HashMap<usize, usize> {
        let mut found = HashMap::new();
        for _ in 0..steps {
            let threads = trials.threads();
            *found.entry(threads).or_default() += 1;
            trials.note(Duration::from_micros(took(threads)));
        }
        found
    }

    #[test]
    fn the_quickest_number_is_found_and_found_again() {
        let mut trials = Trials::between([1, 8]);
        let found = run(&mut trials, 1000, |threads| [0, 200, 150, 0, 180, 0, 0, 0, 250][threads]);
        assert_eq!(found.values().sum::<usize>(), 1000);
        assert!(found[&2] > 900, "{found:?}");
        assert!(found.len() == 4 && found.values().all(|steps| *steps >= 3), "{found:?}");
        // Something else takes a core.
        let found = run(&mut trials, 1000, |threads| [0, 200, 900, 0, 950, 0, 0, 0, 990][threads]);
        assert!(found[&1] > 700, "{found:?}");
    }

    #[test]
    fn where_one_number_is_sure_nothing_is_tried() {
        let found = run(&mut Trials::between([2, 2]), 100, |_| 100);
        assert_eq!(found[&2], 100);
    }
}
