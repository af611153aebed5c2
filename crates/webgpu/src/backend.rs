//! A GPU as a [`Backend`]: owns weights, caches, arena and programs, and queues steps.

use std::collections::HashMap;

use mambo_kernel::check::check_program;
use mambo_kernel::{
    Backend, BackendError, CHOSEN, CacheLayout, CallTime, Cell, Elem, HiddenRows, KernelRow, MemoryBudget,
    Place, Program, ProgramId, StepInputs, StepResults, Ticket, Wait, WeightKey, WeightSource,
};

use crate::buffers::bytes_of;
use crate::caches::Caches;
use crate::cell_traffic::CellTraffic;
use crate::device::{Device, DeviceInfo, Limits, NoDevice};
use crate::diagnosis::{self, Diagnosis};
use crate::kernels::declaration::{Bind, Declaration};
use crate::kernels::declarations;
use crate::params::narrow;
use crate::pipelines::Pipelines;
use crate::pool::Pool;
#[cfg(not(target_family = "wasm"))]
use crate::profile;
use crate::program::{Compiled, Part, Places, Surroundings};
use crate::step_table::{PreviousRows, Surroundings as StepSurroundings, Table};
use crate::steps::{CHOICE_ROWS, Results, Steps};
use crate::vectors::Vectors;
use crate::watcher::Watcher;
use crate::weights::{self, Weight};

/// Steps that may be on their way: while one runs, the next is queued.
const QUEUE_DEPTH: usize = 2;
/// Bytes of a step's table at first.
const FIRST_TABLE_BYTES: usize = 64 << 10;
/// Parts of the arena's buffer start on multiples of so many words.
const PART_WORDS: usize = 64;

/// How to set the backend up.
#[derive(Clone, Debug, Default)]
pub struct WebGpuOptions {
    /// Number of the device ([`crate::devices`]).
    pub device: usize,
    /// The limits to ask for.
    pub limits: Limits,
    /// Bytes that the caller knows to be free on the device: no interface tells.
    pub memory_bytes: Option<u64>,
    /// What the caller knows the device as: browsers tell its name to scripts alone.
    pub name: Option<String>,
}

/// Words of the parts of the arena's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sizes {
    arena: usize,
    hidden: usize,
    choice_row: usize,
    scratch: usize,
}

impl Sizes {
    fn places(self) -> (Places, usize) {
        let part = |words: usize| words.next_multiple_of(PART_WORDS);
        let hidden = part(self.arena);
        let choices = hidden + part(self.hidden);
        let scratch = choices + part(self.choice_row * CHOICE_ROWS);
        let places = Places {
            hidden: narrow(hidden),
            choices: narrow(choices),
            choice_row: narrow(self.choice_row),
            scratch: narrow(scratch),
        };
        (places, scratch + part(self.scratch))
    }
}

/// Buffers that launches are bound to.
struct Buffers {
    sizes: Sizes,
    places: Places,
    arena: wgpu::Buffer,
    step: wgpu::Buffer,
    /// Stand in where a kernel has no weight and no cache.
    unused: [wgpu::Buffer; 2],
}

/// The backend.
pub struct WebGpuBackend {
    name: String,
    device: Device,
    rows: Vec<KernelRow>,
    /// By row.
    binds: Vec<Bind>,
    programs: Vec<Compiled>,
    pipelines: Pipelines,
    vectors: Vectors,
    pool: Pool,
    weights: HashMap<WeightKey, Weight>,
    held: HashMap<WeightKey, u64>,
    caches: Caches,
    cells: CellTraffic,
    buffers: Buffers,
    steps: Steps,
    table: Table,
    /// The program that was submitted last, which the next step may take rows from.
    last: Option<ProgramId>,
    profiling: bool,
    /// Counts changes of buffers that launches are bound to.
    generation: u64,
    /// Programs that have been asked for their working memory with these caches.
    settled: usize,
    memory_bytes: Option<u64>,
}

impl WebGpuBackend {
    /// Opens a device. Kernels are compiled when a program first needs them.
    pub async fn open(options: &WebGpuOptions) -> Result<WebGpuBackend, NoDevice> {
        let mut device = Device::open(options.device, options.limits).await?;
        device.info.name = options.name.clone().unwrap_or(device.info.name);
        let refused = |error: BackendError| NoDevice::Refused {
            name: device.info.name.clone(),
            reason: error.to_string(),
        };
        let buffers = Buffers {
            sizes: Sizes::default(),
            places: Places::default(),
            arena: device.storage(0, "activations").map_err(refused)?,
            step: device.storage(FIRST_TABLE_BYTES, "a step's arrays").map_err(refused)?,
            unused: [
                device.storage(0, "no weight").map_err(refused)?,
                device.storage(0, "no cache").map_err(refused)?,
            ],
        };
        let caches = Caches::new(&device, &CacheLayout::default()).map_err(refused)?;
        let (mut rows, mut binds) = (Vec::new(), Vec::new());
        for Declaration { row, bind, .. } in declarations() {
            rows.push(row);
            binds.push(bind);
        }
        Ok(WebGpuBackend {
            name: format!("webgpu/{} {}", device.info.api, device.info.name),
            rows,
            binds,
            programs: Vec::new(),
            pipelines: Pipelines::new(&device.device),
            vectors: Vectors::default(),
            pool: Pool::default(),
            weights: HashMap::new(),
            held: HashMap::new(),
            caches,
            cells: CellTraffic::default(),
            buffers,
            steps: Steps::default(),
            table: Table::default(),
            last: None,
            profiling: false,
            generation: 0,
            settled: 0,
            memory_bytes: options.memory_bytes,
            device,
        })
    }

    /// The same, blocking: not for browsers.
    #[cfg(not(target_family = "wasm"))]
    pub fn new(options: &WebGpuOptions) -> Result<WebGpuBackend, NoDevice> {
        crate::device::block_on(Self::open(options))
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        &self.device.info
    }

    /// Loses the device when it is called, as a driver may at any time: for tests of what comes after.
    pub fn destroyer(&self) -> impl FnOnce() + use<> {
        let device = self.device.device.clone();
        move || device.destroy()
    }

    /// What awaits the device, for callers that may not block.
    pub fn watcher(&self) -> Watcher {
        Watcher::of(&self.device)
    }

    /// Tries the device with tasks whose results are known, from a bare dispatch up.
    pub async fn diagnose(&mut self) -> Vec<Diagnosis> {
        diagnosis::diagnose(&self.device, &mut self.pipelines).await
    }

    /// GB/s at which the device reads its memory in a plain loop: the floor under everything that streams weights.
    #[cfg(not(target_family = "wasm"))]
    pub fn read_bandwidth(&mut self, bytes: usize) -> Result<f64, BackendError> {
        diagnosis::read_bandwidth(&self.device, &mut self.pipelines, bytes)
    }

    /// Grows the arena's buffer to these sizes; what it held is lost.
    fn grow(&mut self, sizes: Sizes) -> Result<(), BackendError> {
        let old = self.buffers.sizes;
        let sizes = Sizes {
            arena: sizes.arena.max(old.arena),
            hidden: sizes.hidden.max(old.hidden),
            choice_row: sizes.choice_row.max(old.choice_row),
            scratch: sizes.scratch.max(old.scratch),
        };
        if sizes == old {
            return Ok(());
        }
        let (places, words) = sizes.places();
        self.buffers.arena = self.device.storage(words * 4, "activations and working memory")?;
        (self.buffers.sizes, self.buffers.places) = (sizes, places);
        self.steps.forget_choices();
        self.generation += 1;
        Ok(())
    }

    /// What programs are bound to, and the rest.
    fn surroundings(&mut self) -> (Surroundings<'_>, &mut Vec<Compiled>, &mut Vectors, &mut Pipelines) {
        let [weight, cache] = &self.buffers.unused;
        let around = Surroundings {
            device: &self.device,
            places: self.buffers.places,
            arena: &self.buffers.arena,
            step: &self.buffers.step,
            unused: [weight, cache],
            caches: &self.caches,
            weights: &self.weights,
            binds: &self.binds,
            generation: self.generation,
        };
        (around, &mut self.programs, &mut self.vectors, &mut self.pipelines)
    }

    /// Grows the working memory to what all programs need with these caches.
    fn settle(&mut self) -> Result<(), BackendError> {
        let mut most = 0;
        for index in self.settled..self.programs.len() {
            let (around, programs, vectors, _) = self.surroundings();
            most = most.max(programs[index].scratch(&around, vectors)?);
        }
        self.settled = self.programs.len();
        self.grow(Sizes { scratch: most, ..Sizes::default() })
    }

    /// The output of the step before whose rows become hidden rows.
    fn previous_rows(&self, step: &StepInputs) -> Option<PreviousRows> {
        let HiddenRows::Previous { output, rows } = step.hidden else { return None };
        let last = self.last.expect("a step was submitted before");
        let operand = self.programs[last.0].program.outputs[output].operand;
        assert!(operand.elem == Elem::F32, "rows that a step takes over are f32");
        assert_eq!(rows.len(), step.token_ids.len(), "a row of the step before for every row of this one");
        let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
        let words = |bytes: usize| narrow(bytes / 4);
        let (first, stride) = (words(offset), words(operand.stride_bytes));
        Some(PreviousRows { first, stride, cols: narrow(operand.cols) })
    }

    /// Bytes of hidden rows that a step brings.
    fn hidden_bytes(step: &StepInputs, previous: Option<PreviousRows>) -> usize {
        match step.hidden {
            HiddenRows::None => 0,
            HiddenRows::Given(rows) => size_of_val(rows),
            HiddenRows::Previous { rows, .. } => {
                rows.len() * previous.map_or(0, |rows| rows.cols as usize * 4)
            }
        }
    }

    /// Writes a step's table, all but its masks, and its hidden rows.
    fn write_table(
        &mut self,
        id: ProgramId,
        step: &StepInputs,
        ticket: Ticket,
        previous: Option<PreviousRows>,
    ) -> Result<u32, BackendError> {
        let vocabulary = self.programs[id.0].program.chooser().map_or(0, |call| call.inputs[0].cols);
        let before = self.steps.choices_of(step.chosen_by);
        let takes_over = step.token_ids.iter().any(|id| id & CHOSEN != 0);
        assert!(before.is_some() || !takes_over, "tokens are taken over from one of the last steps");
        let places = self.buffers.places;
        let row_at = |row: usize| places.choices + narrow(row) * places.choice_row;
        let chosen_here = row_at(self.steps.keep_choices(ticket));
        let around = StepSurroundings {
            chosen_before: before.map_or(0, row_at),
            chosen_here,
            previous: previous.unwrap_or_default(),
            hidden: places.hidden,
            vocabulary,
            kv_groups: self.caches.layout.kv_groups.len(),
        };
        let rows = if let HiddenRows::Previous { rows, .. } = step.hidden { rows } else { &[] };
        self.table.fill(step, rows, &around);
        let bytes = self.table.words().len() * 4;
        if bytes as u64 > self.buffers.step.size() {
            self.buffers.step = self.device.storage(bytes.next_power_of_two(), "a step's arrays")?;
            self.generation += 1;
        }
        let ready = &self.table.words()[..self.table.masks_at()];
        self.device.write(&self.buffers.step, 0, ready);
        if let HiddenRows::Given(rows) = step.hidden {
            let read = self.programs[id.0].needs.hidden_bytes(step.token_ids.len(), step.wanted.len());
            let words: Vec<u32> = rows[..read / 4].iter().map(|value| value.to_bits()).collect();
            self.device.write(&self.buffers.arena, u64::from(places.hidden), &words);
        }
        Ok(chosen_here)
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("step") })
    }

    /// Encodes a step's calls; masks are asked for when all that needs none is on its way.
    fn encode(&mut self, id: ProgramId, step: &StepInputs) -> Result<wgpu::CommandEncoder, BackendError> {
        let has_masks = self.table.words().len() > self.table.masks_at();
        let mut encoder = self.encoder();
        if self.profiling {
            self.write_masks(step);
            self.profile(id, step)?;
            return Ok(encoder);
        }
        let program = &self.programs[id.0];
        if !has_masks {
            program.encode(&mut encoder, step, Part::Whole);
            return Ok(encoder);
        }
        program.encode(&mut encoder, step, Part::BeforeChoosing);
        self.device.queue.submit([encoder.finish()]);
        self.write_masks(step);
        let mut encoder = self.encoder();
        self.programs[id.0].encode(&mut encoder, step, Part::Choosing);
        Ok(encoder)
    }

    fn write_masks(&mut self, step: &StepInputs) {
        self.table.fill_masks(step);
        let at = self.table.masks_at();
        self.device.write(&self.buffers.step, at as u64, &self.table.words()[at..]);
    }

    /// Runs a step call by call and adds up the times: the device's own, or those of submitting and waiting.
    #[cfg(not(target_family = "wasm"))]
    fn profile(&mut self, id: ProgramId, step: &StepInputs) -> Result<(), BackendError> {
        self.device.device.poll(wgpu::PollType::wait_indefinitely()).ok();
        let times = profile::call_times(&self.device, &self.programs[id.0], step)?;
        for (sum, time) in self.programs[id.0].times.iter_mut().zip(times) {
            sum.total += time;
            sum.runs += 1;
        }
        self.device.faults.check("a profiled step")
    }

    /// There is no clock, and nothing waits.
    #[cfg(target_family = "wasm")]
    fn profile(&mut self, id: ProgramId, step: &StepInputs) -> Result<(), BackendError> {
        let mut encoder = self.encoder();
        self.programs[id.0].encode(&mut encoder, step, Part::Whole);
        self.device.queue.submit([encoder.finish()]);
        Ok(())
    }
}

impl Backend for WebGpuBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.rows
    }

    fn memory(&self) -> Result<MemoryBudget, BackendError> {
        Ok(MemoryBudget { host: None, device: self.memory_bytes })
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn may_block(&self) -> bool {
        !cfg!(target_family = "wasm")
    }

    fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError> {
        if self.weights.contains_key(key) {
            return Ok(());
        }
        self.device.faults.check("loading weights")?;
        let (weight, bytes) = weights::load(&self.device, (&mut self.vectors, &mut self.pool), key, source)?;
        self.weights.insert(key.clone(), weight);
        self.held.insert(key.clone(), bytes);
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.held.values().sum()
    }

    fn held_bytes(&self, key: &WeightKey) -> Option<u64> {
        self.held.get(key).copied()
    }

    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
        // The old ones go first: both may not fit.
        self.caches = Caches::new(&self.device, &CacheLayout::default())?;
        self.caches = Caches::new(&self.device, layout)?;
        (self.generation, self.settled) = (self.generation + 1, 0);
        Ok(())
    }

    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
        check_program(&program, &self.rows);
        let mut vocabulary = usize::MAX;
        for key in &program.weights {
            let Some(weight) = self.weights.get(key) else {
                let (program, name) = (program.name.clone(), key.name.clone());
                return Err(BackendError::MissingWeight { program, name });
            };
            if let (Weight::Matrix(table), mambo_kernel::WeightUse::Table) = (weight, key.usage) {
                vocabulary = vocabulary.min(table.dims[1]);
            }
        }
        let (arena, wanted) = (program.arena_bytes, program.max_wanted);
        let compiled = Compiled::new(program, vocabulary);
        let hidden = compiled.needs.most_hidden_bytes();
        let sizes =
            Sizes { arena: arena.div_ceil(4), hidden: hidden.div_ceil(4), choice_row: wanted, scratch: 0 };
        self.grow(sizes)?;
        self.programs.push(compiled);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0].program
    }

    fn clear(&mut self) -> Result<(), BackendError> {
        self.programs.clear();
        self.weights.clear();
        self.held.clear();
        self.vectors = Vectors::default();
        self.pool = Pool::default();
        self.last = None;
        self.steps.clear();
        self.cells = CellTraffic::default();
        self.caches = Caches::new(&self.device, &CacheLayout::default())?;
        (self.generation, self.settled) = (self.generation + 1, 0);
        self.device.flush();
        self.device.faults.check("clearing")
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        self.device.faults.check("a step")?;
        let previous = self.previous_rows(step);
        let Caches { layout, marks, .. } = &mut self.caches;
        self.programs[id.0].needs.check(step, Self::hidden_bytes(step, previous), layout, marks);
        self.settle()?;
        let ticket = self.steps.next_ticket();
        let chosen_here = self.write_table(id, step, ticket, previous)?;
        let (around, programs, vectors, pipelines) = self.surroundings();
        programs[id.0].bind(&around, vectors, pipelines, step)?;
        let encoder = self.encode(id, step)?;
        self.last = Some(id);
        let program = &self.programs[id.0];
        let results = Results {
            arena: &self.buffers.arena,
            chosen_at: program.chooser.map(|_| u64::from(chosen_here) * 4),
            output: &|output: usize| program.program.outputs[output].operand,
        };
        self.steps.submit(&self.device, ticket, encoder, step, &results)?;
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        self.steps.collect(&self.device, ticket, wait, into)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.cells.copy(&self.device, &self.caches, from, to)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        let ticket = self.steps.next_ticket();
        self.cells.export(&self.device, &self.caches, cell, ticket)?;
        Ok(ticket)
    }

    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        self.cells.collect(&self.device, ticket, wait, into)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.cells.import(&self.device, &self.caches, cell, bytes)
    }

    fn poison_arena(&mut self) -> Result<(), BackendError> {
        // Growing it later would lose the poison.
        self.settle()?;
        // All ones is a NaN.
        let words = vec![u32::MAX; self.buffers.sizes.arena];
        self.device.queue.write_buffer(&self.buffers.arena, 0, &bytes_of(&words));
        self.device.flush();
        self.device.faults.check("poisoning the arena")
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), BackendError> {
        self.profiling = on;
        if on {
            self.programs.iter_mut().for_each(|program| program.times.fill(CallTime::default()));
        }
        Ok(())
    }

    fn call_times(&self, id: ProgramId) -> Result<Vec<CallTime>, BackendError> {
        Ok(self.programs[id.0].times.clone())
    }
}
