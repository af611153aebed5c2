//! A program on the device: its calls bound to launches, and the graphs captured of them, one for every bucket of rows.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use mambo_kernel::check::StepNeeds;
use mambo_kernel::{BackendError, Call, CallTime, Op, Program, StepInputs, WeightKey};

use crate::caches::Caches;
use crate::driver::{Event, Stream};
use crate::graph::Graph;
use crate::kernels::binding::{Binding, Bucket, DeviceFacts, Weight};
use crate::kernels::declaration::Bind;
use crate::kernels::step;
use crate::launch::Launch;
use crate::modules::Modules;
use crate::params::Ptr;
use crate::step_table::StepTable;

/// The smallest bucket that holds so many rows, of which there are at most `most`.
fn bucket_of(rows: usize, most: usize) -> usize {
    if rows == 0 { 0 } else { rows.next_power_of_two().min(most.max(rows)) }
}

/// Addresses that launches hold. A change of any of them makes what was captured stale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Addresses {
    pub step: Ptr<StepTable>,
    pub arena: Ptr<u8>,
    pub hidden: Ptr<u8>,
    pub scratch: Ptr<u8>,
    /// Counts the caches that were created.
    pub caches: u64,
}

/// Which part of a program a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// What needs no masks.
    BeforeChoosing,
    /// The rest.
    Choosing,
}

/// The launches of a program for one bucket.
struct Bound {
    begin: Launch,
    /// By call.
    calls: Vec<Vec<Launch>>,
    end: Option<Launch>,
}

impl Bound {
    fn all(&self) -> impl Iterator<Item = &Launch> {
        std::iter::once(&self.begin).chain(self.calls.iter().flatten()).chain(&self.end)
    }

    /// The launches of a part, where `chooser` is the call that chooses.
    fn part(&self, part: Part, chooser: Option<usize>) -> Vec<&Launch> {
        let chooser = chooser.unwrap_or(self.calls.len());
        let before = std::iter::once(&self.begin).chain(self.calls[..chooser].iter().flatten());
        let after = self.calls[chooser..].iter().flatten().chain(&self.end);
        match part {
            Part::Whole => before.chain(after).collect(),
            Part::BeforeChoosing => before.collect(),
            Part::Choosing => after.collect(),
        }
    }
}

/// What binding reads.
pub(crate) struct Surroundings<'a> {
    pub facts: DeviceFacts,
    pub addresses: Addresses,
    pub caches: &'a Caches,
    pub weights: &'a HashMap<WeightKey, Weight>,
    /// By kernel row.
    pub binds: &'a [Bind],
}

/// A program.
pub(crate) struct Compiled {
    pub program: Program,
    pub needs: StepNeeds,
    pub times: Vec<CallTime>,
    chooser: Option<usize>,
    /// The caches for which working memory was made.
    pub settled_with: Option<u64>,
    /// What the graphs below were captured with.
    captured_with: Option<Addresses>,
    graphs: HashMap<(Bucket, Part), Graph>,
}

impl Compiled {
    pub fn new(program: Program, vocabulary: usize) -> Compiled {
        Compiled {
            needs: StepNeeds::of(&program, vocabulary),
            times: vec![CallTime::default(); program.calls.len()],
            chooser: program.calls.iter().position(|call| call.op == Op::Choose),
            settled_with: None,
            captured_with: None,
            graphs: HashMap::new(),
            program,
        }
    }

    /// The bucket of a step.
    pub fn bucket(&self, step: &StepInputs) -> Bucket {
        Bucket {
            tokens: bucket_of(step.token_ids.len(), self.program.max_tokens),
            wanted: bucket_of(step.wanted.len(), self.program.max_wanted),
        }
    }

    /// The largest bucket.
    fn largest_bucket(&self) -> Bucket {
        Bucket { tokens: self.program.max_tokens, wanted: self.program.max_wanted }
    }

    fn bind_call(
        &self,
        around: &Surroundings,
        bucket: Bucket,
        call: &Call,
        need: &Cell<usize>,
    ) -> Result<Vec<Launch>, BackendError> {
        let (mut names, mut weights) = (Vec::new(), Vec::new());
        for &index in &call.weights {
            let key = &self.program.weights[index];
            let weight = around.weights.get(key).ok_or_else(|| self.missing(key))?;
            names.push(key.name.as_str());
            weights.push(weight.clone());
        }
        let layer = call.cache.unwrap_or(0);
        let Addresses { step, arena, hidden, scratch, .. } = around.addresses;
        let binding = Binding {
            facts: around.facts,
            call,
            bucket,
            step,
            arena,
            hidden,
            scratch,
            need,
            kv: around.caches.kv(layer),
            slots: around.caches.slots(layer),
            names,
            weights,
        };
        (around.binds[call.kernel])(&binding)
    }

    /// The error of a program whose weight was not loaded.
    pub fn missing(&self, key: &WeightKey) -> BackendError {
        BackendError::MissingWeight { program: self.program.name.clone(), name: key.name.clone() }
    }

    fn bind(&self, around: &Surroundings, bucket: Bucket) -> Result<Bound, BackendError> {
        let mut calls = Vec::with_capacity(self.program.calls.len());
        for call in &self.program.calls {
            calls.push(self.bind_call(around, bucket, call, &Cell::default())?);
        }
        let Addresses { step, arena, .. } = around.addresses;
        let chooser = self.chooser.map(|index| &self.program.calls[index]);
        Ok(Bound {
            begin: step::begin(step, bucket),
            calls,
            end: chooser.map(|call| step::end(step, arena, call, bucket)),
        })
    }

    /// Bytes of working memory that any call of any step needs.
    pub fn scratch(&self, around: &Surroundings) -> Result<usize, BackendError> {
        let mut most = 0;
        for tokens in std::iter::successors(Some(1), |tokens| Some(tokens * 2)) {
            // Kernels for few rows may need more than those for many.
            let largest = self.largest_bucket();
            let bucket = Bucket { tokens: tokens.min(largest.tokens), wanted: tokens.min(largest.wanted) };
            for call in &self.program.calls {
                let need = Cell::default();
                self.bind_call(around, bucket, call, &need)?;
                most = most.max(need.get());
            }
            if tokens >= largest.tokens.max(largest.wanted) {
                break;
            }
        }
        Ok(most)
    }

    /// Queues a part of a step by its graph, which is captured if it has to be.
    pub fn launch(
        &mut self,
        around: &Surroundings,
        modules: &mut Modules,
        stream: &Stream,
        bucket: Bucket,
        part: Part,
    ) -> Result<(), BackendError> {
        if self.captured_with != Some(around.addresses) {
            self.graphs.clear();
            self.captured_with = Some(around.addresses);
        }
        if !self.graphs.contains_key(&(bucket, part)) {
            let bound = self.bind(around, bucket)?;
            modules.prepare(bound.all())?;
            let launches = bound.part(part, self.chooser);
            // Nothing may be loaded while a stream is captured.
            launches.iter().try_for_each(|launch| modules.find(launch))?;
            let graph = Graph::capture(stream.context(), stream, || {
                let mut launches = launches.iter().enumerate();
                launches.try_for_each(|(index, launch)| modules.launch(launch, stream, index > 0))
            })?;
            self.graphs.insert((bucket, part), graph);
        }
        self.graphs[&(bucket, part)].launch(stream)
    }

    /// Runs a step call by call, waits for it and adds up the times.
    pub fn profile(
        &mut self,
        around: &Surroundings,
        modules: &mut Modules,
        stream: &Stream,
        bucket: Bucket,
    ) -> Result<(), BackendError> {
        let bound = self.bind(around, bucket)?;
        modules.prepare(bound.all())?;
        modules.launch(&bound.begin, stream, false)?;
        let mut events = Vec::with_capacity(bound.calls.len() + 1);
        for launches in &bound.calls {
            events.push(timed_event(stream)?);
            launches.iter().try_for_each(|launch| modules.launch(launch, stream, false))?;
        }
        events.push(timed_event(stream)?);
        bound.end.iter().try_for_each(|launch| modules.launch(launch, stream, false))?;
        stream.synchronize("a profiled step")?;
        for (time, ends) in self.times.iter_mut().zip(events.windows(2)) {
            let milliseconds = f64::from(ends[1].milliseconds_since(&ends[0])?);
            time.total += Duration::from_secs_f64(milliseconds.max(0.0) / 1e3);
            time.runs += 1;
        }
        Ok(())
    }
}

fn timed_event(stream: &Stream) -> Result<Event, BackendError> {
    let event = Event::new(stream.context(), true)?;
    event.record(stream)?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double_and_end_with_the_largest_step() {
        assert_eq!([0, 1, 2, 3, 33, 64, 65].map(|rows| bucket_of(rows, 1000)), [0, 1, 2, 4, 64, 64, 128]);
        assert_eq!([513, 1000].map(|rows| bucket_of(rows, 1000)), [1000, 1000]);
    }
}
