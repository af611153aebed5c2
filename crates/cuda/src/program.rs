//! A program on the device: its calls bound to launches, and the graphs captured of them, one for every bucket of rows.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use mambo_kernel::check::StepNeeds;
use mambo_kernel::{BackendError, Call, CallTime, Op, Program, StepInputs, WeightKey};

use crate::caches::Caches;
use crate::driver::{Event, Stream};
use crate::fusion::{Fusion, fusions};
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
    pub arrivals: Ptr<u32>,
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

/// Launches by call, and bytes of working memory.
type BoundCalls = (Vec<Vec<Launch>>, usize);

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
    fusions: Vec<Fusion>,
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
            fusions: fusions(&program),
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

    fn binding<'a>(
        &'a self,
        around: &'a Surroundings,
        bucket: Bucket,
        call: &'a Call,
        need: &'a Cell<usize>,
    ) -> Result<Binding<'a>, BackendError> {
        let (mut names, mut weights) = (Vec::new(), Vec::new());
        for &index in &call.weights {
            let key = &self.program.weights[index];
            let weight = around.weights.get(key).ok_or_else(|| self.missing(key))?;
            names.push(key.name.as_str());
            weights.push(weight.clone());
        }
        let layer = call.cache.unwrap_or(0);
        let Addresses { step, arena, hidden, scratch, arrivals, .. } = around.addresses;
        Ok(Binding {
            facts: around.facts,
            call,
            bucket,
            step,
            arena,
            hidden,
            scratch,
            arrivals,
            need,
            kv: around.caches.kv(layer),
            slots: around.caches.slots(layer),
            names,
            weights,
        })
    }

    /// The launches of the calls of a fusion, by call, and the working memory that they need together; none where they
    /// run one by one.
    fn bind_fusion(
        &self,
        around: &Surroundings,
        bucket: Bucket,
        fusion: &Fusion,
    ) -> Result<Option<BoundCalls>, BackendError> {
        let need = Cell::default();
        let calls = &self.program.calls[fusion.first..fusion.first + fusion.calls];
        let bindings: Result<Vec<_>, _> =
            calls.iter().map(|call| self.binding(around, bucket, call, &need)).collect();
        let launches = (fusion.bind)(&bindings?)?;
        Ok(launches.map(|launches| (launches, need.get())))
    }

    /// The same for the longest fusion from a call on that can be bound.
    fn bind_fusions(
        &self,
        around: &Surroundings,
        bucket: Bucket,
        first: usize,
    ) -> Result<Option<BoundCalls>, BackendError> {
        for fusion in self.fusions.iter().filter(|fusion| fusion.first == first) {
            if let Some(bound) = self.bind_fusion(around, bucket, fusion)? {
                return Ok(Some(bound));
            }
        }
        Ok(None)
    }

    /// The launches of every call, and the most working memory that any of them needs.
    fn bind_calls(&self, around: &Surroundings, bucket: Bucket) -> Result<BoundCalls, BackendError> {
        let (mut launches, mut most) = (Vec::with_capacity(self.program.calls.len()), 0);
        while let Some(call) = self.program.calls.get(launches.len()) {
            let first = launches.len();
            if let Some((fused, need)) = self.bind_fusions(around, bucket, first)? {
                launches.extend(fused);
                most = most.max(need);
                continue;
            }
            let need = Cell::default();
            let binding = self.binding(around, bucket, call, &need)?;
            launches.push((around.binds[call.kernel])(&binding)?);
            most = most.max(need.get());
        }
        Ok((launches, most))
    }

    /// The error of a program whose weight was not loaded.
    pub fn missing(&self, key: &WeightKey) -> BackendError {
        BackendError::MissingWeight { program: self.program.name.clone(), name: key.name.clone() }
    }

    fn bind(&self, around: &Surroundings, bucket: Bucket) -> Result<Bound, BackendError> {
        let (calls, _) = self.bind_calls(around, bucket)?;
        let Addresses { step, arena, .. } = around.addresses;
        let chooser = self.chooser.map(|index| &self.program.calls[index]);
        Ok(Bound {
            begin: step::begin(step, bucket),
            calls,
            end: chooser.map(|call| step::end(step, arena, call, bucket)),
        })
    }

    /// The launches of a step of so many tokens, all of them wanted.
    pub fn launch_count(&self, around: &Surroundings, tokens: usize) -> Result<usize, BackendError> {
        let [tokens, wanted] =
            [self.program.max_tokens, self.program.max_wanted].map(|most| bucket_of(tokens, most));
        let bound = self.bind(around, Bucket { tokens, wanted })?;
        Ok(bound.all().filter(|launch| !launch.is_empty()).count())
    }

    /// Bytes of working memory that any call of any step needs.
    pub fn scratch(&self, around: &Surroundings) -> Result<usize, BackendError> {
        let mut most = 0;
        for tokens in std::iter::successors(Some(1), |tokens| Some(tokens * 2)) {
            // Kernels for few rows may need more than those for many.
            let largest = self.largest_bucket();
            let bucket = Bucket { tokens: tokens.min(largest.tokens), wanted: tokens.min(largest.wanted) };
            most = most.max(self.bind_calls(around, bucket)?.1);
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
