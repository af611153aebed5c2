//! A program on the device: its calls bound to launches, once for every set of buffers; a step encodes them.

use std::cell::Cell;
use std::collections::HashMap;

use mambo_kernel::check::StepNeeds;
use mambo_kernel::{BackendError, Call, CallTime, Op, Program, StepInputs, WeightKey};

use crate::buffers::bytes_of;
use crate::caches::Caches;
use crate::device::Device;
use crate::fusion::Fusion;
use crate::kernels::binding::{Binding, Launch, Norm, StepFacts};
use crate::kernels::declaration::Bind;
use crate::kernels::{experts, quantize, several, ssm_step, step};
use crate::pipelines::{Bindings, PARAMS_BYTES, Pipelines};
use crate::vectors::Vectors;
use crate::weights::Weight;

/// Where the parts of the arena's buffer start, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Places {
    pub hidden: u32,
    pub choices: u32,
    /// Words of one step's choices.
    pub choice_row: u32,
    pub scratch: u32,
}

/// A launch with its buffers.
struct Bound {
    launch: Launch,
    /// Its pipeline, and that of what follows every dispatch; none until they are compiled.
    pipelines: Option<(wgpu::ComputePipeline, Option<wgpu::ComputePipeline>)>,
    group: wgpu::BindGroup,
    /// Byte of its first parameters.
    params_at: u32,
    /// Byte of the first parameters of what follows.
    then_at: u32,
}

/// The launches of a program.
struct BoundProgram {
    begin: Vec<Bound>,
    /// By call.
    calls: Vec<Vec<Bound>>,
    end: Vec<Bound>,
}

/// What binding reads.
pub(crate) struct Surroundings<'a> {
    pub device: &'a Device,
    pub places: Places,
    pub arena: &'a wgpu::Buffer,
    pub step: &'a wgpu::Buffer,
    pub unused: [&'a wgpu::Buffer; 2],
    pub caches: &'a Caches,
    pub weights: &'a HashMap<WeightKey, Weight>,
    /// By kernel row.
    pub binds: &'a [Bind],
    /// Counts changes of any buffer above.
    pub generation: u64,
}

/// Which calls are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// What needs no masks.
    BeforeChoosing,
    Choosing,
    /// One call alone.
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "no call is timed in a browser"))]
    Call(usize),
}

/// Leaves launches out of some steps.
fn leave_out(launches: &mut [Launch], is_out: fn(&StepFacts) -> bool) {
    launches.iter_mut().for_each(|launch| launch.leave_out(is_out));
}

/// The calls of a program while they are bound.
pub(crate) struct Calls<'a> {
    compiled: &'a Compiled,
    pub around: &'a Surroundings<'a>,
    vectors: &'a mut Vectors,
    fusion: &'a Fusion,
    /// Words of working memory that were asked for.
    need: Cell<usize>,
}

impl Calls<'_> {
    /// A call with its surroundings.
    pub fn of(&mut self, index: usize) -> Result<Binding<'_>, BackendError> {
        let Calls { compiled, around, vectors, fusion, need } = self;
        let norm = fusion.norm_of[index]
            .map(|norm| compiled.norm(around, vectors, &compiled.program.calls[norm]))
            .transpose()?;
        let mut binding = compiled.binding(around, vectors, &compiled.program.calls[index], need)?;
        binding.norm = norm;
        binding.is_absorbed = fusion.is_absorbed[index];
        Ok(binding)
    }
}

/// A program.
pub(crate) struct Compiled {
    pub program: Program,
    pub needs: StepNeeds,
    pub times: Vec<CallTime>,
    pub chooser: Option<usize>,
    bound: Option<(u64, BoundProgram)>,
}

impl Compiled {
    pub fn new(program: Program, vocabulary: usize) -> Compiled {
        Compiled {
            needs: StepNeeds::of(&program, vocabulary),
            times: vec![CallTime::default(); program.calls.len()],
            chooser: program.calls.iter().position(|call| call.op == Op::Choose),
            bound: None,
            program,
        }
    }

    /// The launches of every call, and the words of working memory that the greediest needs.
    fn launches(
        &self,
        around: &Surroundings,
        vectors: &mut Vectors,
    ) -> Result<(Vec<Vec<Launch>>, usize), BackendError> {
        let (mut all, mut most) = (Vec::with_capacity(self.program.calls.len()), 0);
        let fusion = Fusion::of(&self.program, around.device.info.workgroup_bytes);
        let mut calls = Calls { compiled: self, around, vectors, fusion: &fusion, need: Cell::new(0) };
        for (index, call) in self.program.calls.iter().enumerate() {
            calls.need.set(0);
            let mut binding = calls.of(index)?;
            let mut launches = (around.binds[call.kernel])(&mut binding)?;
            launches.extend(quantize::rounding(&binding));
            all.push(launches);
            most = most.max(calls.need.get());
        }
        for &first in &fusion.layers {
            calls.need.set(0);
            let Some([up, down]) = experts::bind(&mut calls, first)? else { continue };
            most = most.max(calls.need.get());
            for own in experts::REPLACED {
                leave_out(&mut all[first + own], |facts| facts.tokens <= experts::MOST_TOKENS);
            }
            all[first + experts::UP_AT].extend(up);
            all[first + experts::DOWN_AT].extend(down);
        }
        for products in &fusion.several {
            let Some(launch) = several::bind(&mut calls, products)? else { continue };
            for &product in products {
                leave_out(&mut all[product], |facts| facts.tokens == 1);
            }
            all[products[0]].push(launch);
        }
        for &product in &fusion.projections {
            calls.need.set(0);
            let Some(launch) = ssm_step::bind_projected(&mut calls, product)? else { continue };
            let is_single = |facts: &StepFacts| facts.tokens == 1;
            leave_out(&mut all[product], is_single);
            leave_out(&mut all[product + 1][ssm_step::COLUMNS_AT..=ssm_step::COLUMNS_AT], is_single);
            all[product].push(launch);
        }
        Ok((all, most))
    }

    /// What a product has to know of the norm that it does itself.
    fn norm(&self, around: &Surroundings, vectors: &mut Vectors, call: &Call) -> Result<Norm, BackendError> {
        let need = Cell::new(0);
        let binding = self.binding(around, vectors, call, &need)?;
        match call.op {
            Op::RmsNorm { eps } => {
                let x = binding.input(0);
                Ok(Norm { x, weight: binding.vector(0, call.inputs[0].cols)?, eps, groups: 1 })
            }
            Op::SsmStep { dims, eps } => {
                let x = binding.output(0);
                Ok(Norm { x, weight: binding.vector(5, dims.inner())?, eps, groups: dims.groups })
            }
            _ => binding.wrong_op(),
        }
    }

    fn binding<'a>(
        &'a self,
        around: &'a Surroundings,
        vectors: &'a mut Vectors,
        call: &'a Call,
        need: &'a Cell<usize>,
    ) -> Result<Binding<'a>, BackendError> {
        let (mut names, mut weights) = (Vec::new(), Vec::new());
        for &index in &call.weights {
            let key = &self.program.weights[index];
            let weight = around.weights.get(key).ok_or_else(|| BackendError::MissingWeight {
                program: self.program.name.clone(),
                name: key.name.clone(),
            })?;
            names.push(key.name.as_str());
            weights.push(weight.clone());
        }
        let layer = call.cache.unwrap_or(0);
        Ok(Binding {
            call,
            max_tokens: self.program.max_tokens,
            max_wanted: self.program.max_wanted,
            places: around.places,
            norm: None,
            is_absorbed: false,
            workgroup_bytes: around.device.info.workgroup_bytes,
            need,
            kv: around.caches.kv(layer),
            slots: around.caches.slots(layer),
            vectors,
            names,
            weights,
        })
    }

    /// Words of working memory that any call needs.
    pub fn scratch(&self, around: &Surroundings, vectors: &mut Vectors) -> Result<usize, BackendError> {
        Ok(self.launches(around, vectors)?.1)
    }

    /// Binds the calls to these buffers, unless they are, and compiles their kernels: in a browser, where that is slow,
    /// those that this step needs.
    pub fn bind(
        &mut self,
        around: &Surroundings,
        vectors: &mut Vectors,
        pipelines: &mut Pipelines,
        step: &StepInputs,
    ) -> Result<(), BackendError> {
        self.bind_buffers(around, vectors, pipelines)?;
        let facts = StepFacts::of(step);
        let (_, BoundProgram { begin, calls, end }) = self.bound.as_mut().expect("it was bound");
        for bound in begin.iter_mut().chain(calls.iter_mut().flatten()).chain(end) {
            if bound.pipelines.is_none() && (!cfg!(target_family = "wasm") || bound.runs_in(&facts)) {
                bound.compile(around.device, pipelines)?;
            }
        }
        Ok(())
    }

    /// Binds the calls to these buffers, unless they are.
    fn bind_buffers(
        &mut self,
        around: &Surroundings,
        vectors: &mut Vectors,
        pipelines: &Pipelines,
    ) -> Result<(), BackendError> {
        if self.bound.as_ref().is_some_and(|(generation, _)| *generation == around.generation) {
            return Ok(());
        }
        let (calls, _) = self.launches(around, vectors)?;
        let begin = vec![step::begin(&self.needs, &self.program)];
        let end = self.chooser.map(|chooser| step::end(&self.program.calls[chooser])).into_iter().collect();
        let mut words = Vec::new();
        let mut place_all = |params: &[Vec<u32>]| {
            let at = words.len() as u32 * 4;
            for params in params {
                assert!(params.len() as u64 * 4 <= PARAMS_BYTES, "parameters are larger than their place");
                words.extend(params);
                words.resize(words.len().next_multiple_of(PARAMS_BYTES as usize / 4), 0);
            }
            at
        };
        let mut place = |launch: &Launch| {
            [place_all(&launch.params), launch.then.as_ref().map_or(0, |then| place_all(&then.params))]
        };
        let lists: Vec<Vec<Launch>> = [begin].into_iter().chain(calls).chain([end]).collect();
        let places: Vec<Vec<[u32; 2]>> =
            lists.iter().map(|launches| launches.iter().map(&mut place).collect()).collect();
        words.resize(words.len() + PARAMS_BYTES as usize / 4, 0);
        let params = around.device.uniform(words.len() * 4, "parameters of kernels")?;
        around.device.queue.write_buffer(&params, 0, &bytes_of(&words));
        let vectors = vectors.upload(around.device)?;
        let bind = |launch: Launch, [params_at, then_at]: [u32; 2]| {
            let buffers = Bindings {
                arena: around.arena,
                step: around.step,
                params: &params,
                vectors: &vectors,
                matrix: launch.matrix.as_ref().unwrap_or(around.unused[0]),
                cache: launch.cache.as_ref().unwrap_or(around.unused[1]),
            };
            let group = pipelines.bind(&around.device.device, &buffers);
            Bound { launch, pipelines: None, group, params_at, then_at }
        };
        let mut bound: Vec<Vec<Bound>> = Vec::with_capacity(lists.len());
        for (launches, places) in lists.into_iter().zip(places) {
            bound.push(launches.into_iter().zip(places).map(|(launch, at)| bind(launch, at)).collect());
        }
        around.device.faults.check("binding a program")?;
        let end = bound.pop().expect("an end");
        let mut bound = bound.into_iter();
        let begin = bound.next().expect("a beginning");
        self.bound = Some((around.generation, BoundProgram { begin, calls: bound.collect(), end }));
        Ok(())
    }

    /// Encodes a part of a step in one pass.
    pub fn encode(&self, encoder: &mut wgpu::CommandEncoder, step: &StepInputs, part: Part) {
        self.encode_timed(encoder, step, part, None);
    }

    /// The same, with places for the times at which the pass begins and ends.
    pub fn encode_timed(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        step: &StepInputs,
        part: Part,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites>,
    ) {
        let (_, bound) = self.bound.as_ref().expect("a program is bound before it is encoded");
        let facts = StepFacts::of(step);
        let chooser = self.chooser.unwrap_or(bound.calls.len());
        let (begins, calls, ends) = match part {
            Part::Whole => (true, 0..bound.calls.len(), true),
            Part::BeforeChoosing => (true, 0..chooser, false),
            Part::Choosing => (false, chooser..bound.calls.len(), true),
            Part::Call(call) => (call == 0, call..call + 1, call + 1 == bound.calls.len()),
        };
        let mut pass =
            encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        let before = bound.begin.iter().filter(|_| begins && facts.takes_rows);
        let after = bound.end.iter().filter(|_| ends);
        for bound in before.chain(bound.calls[calls].iter().flatten()).chain(after) {
            bound.encode(&facts, &mut pass);
        }
    }
}

impl Bound {
    /// Whether a step dispatches it.
    fn runs_in(&self, facts: &StepFacts) -> bool {
        let mut runs = false;
        (self.launch.dispatch)(facts, &mut |_, grid| runs |= !grid.contains(&0));
        runs
    }

    fn compile(&mut self, device: &Device, pipelines: &mut Pipelines) -> Result<(), BackendError> {
        let own = pipelines.get(device, &self.launch.kernel)?;
        let then = self.launch.then.as_ref().map(|then| pipelines.get(device, &then.kernel)).transpose()?;
        self.pipelines = Some((own, then));
        Ok(())
    }

    fn encode(&self, facts: &StepFacts, pass: &mut wgpu::ComputePass) {
        (self.launch.dispatch)(facts, &mut |variant, grid| {
            if grid.contains(&0) {
                return;
            }
            let mut run = |pipeline: &wgpu::ComputePipeline, params_at: u32, [x, y, z]: [u32; 3]| {
                pass.set_pipeline(pipeline);
                pass.set_bind_group(0, &self.group, &[params_at + variant as u32 * PARAMS_BYTES as u32]);
                pass.dispatch_workgroups(x, y, z);
            };
            let (own, following) = self.pipelines.as_ref().expect("what a step runs was compiled");
            run(own, self.params_at, grid);
            if let (Some(pipeline), Some(then)) = (following, &self.launch.then) {
                run(pipeline, self.then_at, (then.grid)(grid));
            }
        });
    }
}
