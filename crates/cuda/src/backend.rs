//! A GPU as a [`Backend`]: owns weights, caches, arena and programs, and queues steps on one stream.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mambo_kernel::check::check_program;
use mambo_kernel::{
    Backend, BackendError, CacheLayout, CallTime, Cell, Elem, HiddenRows, KernelRow, MemoryBudget, Place,
    Program, ProgramId, StepInputs, StepResults, Ticket, Wait, WeightKey, WeightSource,
};

use crate::bandwidth;
use crate::caches::{Caches, CellTraffic};
use crate::compiler::{CompileError, Compiler, KernelFiles};
use crate::device::{DeviceInfo, NoGpu, usable_device};
use crate::driver::{Context, Stream};
use crate::kernels::binding::Weight;
use crate::kernels::declaration::{Bind, Declaration};
use crate::kernels::declarations;
use crate::loader::{Loader, Stages};
use crate::memory::DeviceBuffer;
use crate::modules::Modules;
use crate::program::{Addresses, Compiled, Part, Surroundings};
use crate::steps::{ResultsPlan, Steps};
use crate::upload::{Block, PreviousRows, Surroundings as BlockSurroundings};
use crate::weights;

/// Steps that may be on their way: while one runs, the next is queued.
const QUEUE_DEPTH: usize = 2;
/// Bytes of a step's block at first.
const FIRST_BLOCK_BYTES: usize = 64 << 10;
/// Bytes of counters.
const ARRIVAL_BYTES: usize = 256;
/// Memory of the device that is left to the driver and to others.
const RESERVED_BYTES: u64 = 512 << 20;

/// How to set the backend up.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Number of the GPU.
    pub device: usize,
    /// Where compiled kernels are kept; without it they are compiled anew by every process.
    pub kernel_folder: Option<PathBuf>,
    /// An archive of compiled kernels that came with the program; one that does not exist is none.
    pub kernel_archive: Option<PathBuf>,
}

/// Why a backend could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// There is no GPU to use.
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    /// Kernels cannot be compiled.
    #[error(transparent)]
    Compiler(#[from] CompileError),
    /// The driver failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Buffers whose addresses captured launches hold.
struct Buffers {
    block: DeviceBuffer,
    arena: DeviceBuffer,
    hidden: DeviceBuffer,
    scratch: DeviceBuffer,
    /// Counters that kernels leave at zero.
    arrivals: DeviceBuffer,
}

impl Buffers {
    fn new(context: &Arc<Context>, stream: &Stream) -> Result<Buffers, BackendError> {
        let empty = || DeviceBuffer::new(context, 0, "nothing");
        Ok(Buffers {
            block: DeviceBuffer::new(context, FIRST_BLOCK_BYTES, "a step's arrays")?,
            arena: empty()?,
            hidden: empty()?,
            scratch: empty()?,
            arrivals: DeviceBuffer::zeroed(context, stream, ARRIVAL_BYTES, "counters")?,
        })
    }
}

/// The backend.
pub struct CudaBackend {
    name: String,
    device: DeviceInfo,
    rows: Vec<KernelRow>,
    /// By row.
    binds: Vec<Bind>,
    // What holds handles of the driver comes before the context; buffers hold a share of it themselves.
    programs: Vec<Compiled>,
    modules: Modules,
    weights: HashMap<WeightKey, Weight>,
    held: HashMap<WeightKey, usize>,
    stages: Option<Stages>,
    caches: Caches,
    /// Counts the caches that were created.
    caches_made: u64,
    cells: CellTraffic,
    buffers: Buffers,
    steps: Steps,
    block: Block,
    /// The program that was submitted last, which the next step may take rows from.
    last: Option<ProgramId>,
    profiling: bool,
    stream: Stream,
    context: Arc<Context>,
}

impl CudaBackend {
    /// Why a GPU cannot be used, if it cannot; opens nothing.
    pub fn check(options: &CudaOptions) -> Result<(DeviceInfo, Compiler), CudaError> {
        let device = usable_device(options.device)?;
        let files = KernelFiles {
            folder: options.kernel_folder.as_deref(),
            archive: options.kernel_archive.as_deref(),
        };
        // A driver loads what any compiler of its own generation makes.
        let compiler = Compiler::with(files, Some(device.driver))?;
        Ok((device, compiler))
    }

    /// Opens a GPU. Kernels are compiled when a program first needs them.
    pub fn new(options: &CudaOptions) -> Result<CudaBackend, CudaError> {
        let (device, compiler) = Self::check(options)?;
        let context = Context::open(device.raw)?;
        let stream = Stream::new(&context)?;
        let (mut rows, mut binds) = (Vec::new(), Vec::new());
        for Declaration { row, bind, .. } in declarations(device.arch) {
            rows.push(row);
            binds.push(bind);
        }
        Ok(CudaBackend {
            name: format!("cuda/{} {}", device.arch, device.name),
            rows,
            binds,
            programs: Vec::new(),
            modules: Modules::new(&context, device.arch, compiler),
            weights: HashMap::new(),
            held: HashMap::new(),
            stages: None,
            caches: Caches::new(&context, &stream, &CacheLayout::default())?,
            caches_made: 0,
            cells: CellTraffic::default(),
            buffers: Buffers::new(&context, &stream)?,
            steps: Steps::new(&context)?,
            block: Block::default(),
            last: None,
            profiling: false,
            stream,
            context,
            device,
        })
    }

    /// The GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// What the user should know of how kernels are found.
    pub fn note(&self) -> Option<&str> {
        self.modules.note()
    }

    /// GB/s at which the device reads `bytes` of its memory in a plain loop: the floor under everything that streams
    /// weights.
    pub fn read_bandwidth(&mut self, bytes: usize) -> Result<f64, BackendError> {
        self.context.enter()?;
        bandwidth::read_bandwidth(&self.context, &self.stream, &mut self.modules, &self.device, bytes)
    }

    /// The launches of a step of so many tokens, all of them wanted: fewer than calls where some run together.
    pub fn launch_count(&mut self, id: ProgramId, tokens: usize) -> Result<usize, BackendError> {
        self.context.enter()?;
        self.settle(id)?;
        let (around, compiled, ..) = self.surroundings(id);
        compiled.launch_count(&around, tokens)
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            step: self.buffers.block.ptr(),
            arena: self.buffers.arena.ptr(),
            hidden: self.buffers.hidden.ptr(),
            scratch: self.buffers.scratch.ptr(),
            arrivals: self.buffers.arrivals.ptr(),
            caches: self.caches_made,
        }
    }

    /// Everything that a program is bound to, and the program.
    fn surroundings(&mut self, id: ProgramId) -> (Surroundings<'_>, &mut Compiled, &mut Modules, &Stream) {
        let addresses = self.addresses();
        let around = Surroundings {
            facts: self.device.facts(),
            addresses,
            caches: &self.caches,
            weights: &self.weights,
            binds: &self.binds,
        };
        (around, &mut self.programs[id.0], &mut self.modules, &self.stream)
    }

    /// Grows the working memory to what a program's calls need, once for every set of caches.
    fn settle(&mut self, id: ProgramId) -> Result<(), BackendError> {
        if self.programs[id.0].settled_with == Some(self.caches_made) {
            return Ok(());
        }
        let (around, compiled, ..) = self.surroundings(id);
        let need = compiled.scratch(&around)?;
        if need > self.buffers.scratch.bytes() {
            self.buffers.scratch = DeviceBuffer::new(&self.context, need, "working memory")?;
        }
        self.programs[id.0].settled_with = Some(self.caches_made);
        Ok(())
    }

    /// The output of the step before whose rows become hidden rows.
    fn previous_rows(&self, step: &StepInputs) -> Option<PreviousRows> {
        let HiddenRows::Previous { output, rows } = step.hidden else { return None };
        let last = self.last.expect("a step was submitted before");
        let operand = self.programs[last.0].program.outputs[output].operand;
        assert!(operand.elem == Elem::F32, "rows that a step takes over are f32");
        assert_eq!(rows.len(), step.token_ids.len(), "a row of the step before for every row of this one");
        let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
        let first = self.buffers.arena.ptr().plus_bytes(offset);
        Some(PreviousRows { first, stride: operand.stride_bytes, cols: operand.cols })
    }

    /// Bytes of hidden rows that a step brings.
    fn hidden_bytes(step: &StepInputs, previous: Option<PreviousRows>) -> usize {
        match step.hidden {
            HiddenRows::None => 0,
            HiddenRows::Given(rows) => size_of_val(rows),
            HiddenRows::Previous { rows, .. } => rows.len() * previous.map_or(0, |rows| rows.cols * 4),
        }
    }

    /// Queues a step's calls; masks are asked for after everything that needs none was queued.
    fn launch(
        &mut self,
        id: ProgramId,
        step: &StepInputs,
        entry: &mut crate::steps::Entry,
    ) -> Result<(), BackendError> {
        let (bytes, masks_at) = (self.block.bytes().len(), self.block.masks_at());
        let bucket = self.programs[id.0].bucket(step);
        self.buffers.block.copy_from_pinned(&self.stream, 0, &entry.block, 0, masks_at)?;
        let has_masks = bytes > masks_at;
        if has_masks && !self.profiling {
            let (around, compiled, modules, stream) = self.surroundings(id);
            compiled.launch(&around, modules, stream, bucket, Part::BeforeChoosing)?;
        }
        if has_masks {
            self.block.fill_masks(step, &mut entry.block.as_mut_slice()[masks_at..bytes]);
            let masks = bytes - masks_at;
            self.buffers.block.copy_from_pinned(&self.stream, masks_at, &entry.block, masks_at, masks)?;
        }
        let profiling = self.profiling;
        let (around, compiled, modules, stream) = self.surroundings(id);
        match (profiling, has_masks) {
            (true, _) => compiled.profile(&around, modules, stream, bucket),
            (false, true) => compiled.launch(&around, modules, stream, bucket, Part::Choosing),
            (false, false) => compiled.launch(&around, modules, stream, bucket, Part::Whole),
        }
    }

    /// Puts a step's arrays together in pinned memory and copies its hidden rows.
    fn write_block(
        &mut self,
        id: ProgramId,
        step: &StepInputs,
        ticket: Ticket,
        entry: &mut crate::steps::Entry,
        (previous, results_bytes): (Option<PreviousRows>, usize),
    ) -> Result<(), BackendError> {
        let program = &self.programs[id.0].program;
        let vocabulary = program.chooser().map_or(0, |call| call.inputs[0].cols);
        let before = self.steps.choices_of(step.chosen_by);
        let takes_over = step.token_ids.iter().any(|id| id & mambo_kernel::CHOSEN != 0);
        assert!(before.is_some() || !takes_over, "tokens are taken over from one of the last steps");
        let read = self.programs[id.0].needs.hidden_bytes(step.token_ids.len(), step.wanted.len());
        let given: &[f32] = if let HiddenRows::Given(rows) = step.hidden { &rows[..read / 4] } else { &[] };
        entry.reserve(&self.context, [0, size_of_val(given), results_bytes])?;
        let mut around = BlockSurroundings {
            block: self.buffers.block.ptr(),
            chosen_before: before.unwrap_or(crate::params::Ptr::NULL),
            chosen_here: self.steps.keep_choices(ticket),
            chosen_host: entry.results.ptr(),
            previous,
            hidden: self.buffers.hidden.ptr(),
            vocabulary,
            kv_groups: self.caches.layout_and_marks().0.kv_groups.len(),
        };
        let rows = if let HiddenRows::Previous { rows, .. } = step.hidden { rows } else { &[] };
        self.block.fill(step, rows, &around);
        if self.block.bytes().len() > self.buffers.block.bytes() {
            let bytes = self.block.bytes().len().next_power_of_two();
            self.buffers.block = DeviceBuffer::new(&self.context, bytes, "a step's arrays")?;
            around.block = self.buffers.block.ptr();
            self.block.fill(step, rows, &around);
        }
        let bytes = self.block.bytes();
        entry.reserve(&self.context, [bytes.len(), 0, 0])?;
        entry.block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let pinned = entry.hidden.as_mut_slice().as_chunks_mut().0;
        pinned.iter_mut().zip(given).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
        self.buffers.hidden.copy_from_pinned(&self.stream, 0, &entry.hidden, 0, size_of_val(given))
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.rows
    }

    fn memory(&self) -> Result<MemoryBudget, BackendError> {
        let (free, _) = self.context.memory()?;
        Ok(MemoryBudget { host: None, device: Some(free.saturating_sub(RESERVED_BYTES)) })
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError> {
        if self.weights.contains_key(key) {
            return Ok(());
        }
        self.context.enter()?;
        let stages = match &mut self.stages {
            Some(stages) => stages,
            empty => empty.insert(Stages::new(&self.context)?),
        };
        let mut loader =
            Loader { context: &self.context, stream: &self.stream, modules: &mut self.modules, stages };
        let (weight, bytes) = weights::load(&mut loader, key, source)?;
        self.weights.insert(key.clone(), weight);
        self.held.insert(key.clone(), bytes);
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.held.values().map(|bytes| *bytes as u64).sum()
    }

    fn held_bytes(&self, key: &WeightKey) -> Option<u64> {
        self.held.get(key).map(|bytes| *bytes as u64)
    }

    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
        self.context.enter()?;
        // The old ones go first: both may not fit. Loading is over, so its buffers go, too.
        self.caches = Caches::new(&self.context, &self.stream, &CacheLayout::default())?;
        self.stages = None;
        self.caches = Caches::new(&self.context, &self.stream, layout)?;
        self.caches_made += 1;
        Ok(())
    }

    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
        self.context.enter()?;
        check_program(&program, &self.rows);
        let mut vocabulary = usize::MAX;
        let missing = program.weights.iter().find(|key| !self.weights.contains_key(*key));
        for key in &program.weights {
            if let Some(Weight::Table(table)) = self.weights.get(key) {
                vocabulary = vocabulary.min(table.rows);
            }
        }
        if let Some(key) = missing {
            let (program, name) = (program.name.clone(), key.name.clone());
            return Err(BackendError::MissingWeight { program, name });
        }
        if program.arena_bytes > self.buffers.arena.bytes() {
            self.buffers.arena = DeviceBuffer::new(&self.context, program.arena_bytes, "activations")?;
        }
        self.steps.reserve_choices(&self.context, program.max_wanted)?;
        let compiled = Compiled::new(program, vocabulary);
        let hidden = compiled.needs.most_hidden_bytes();
        if hidden > self.buffers.hidden.bytes() {
            self.buffers.hidden = DeviceBuffer::new(&self.context, hidden, "hidden rows")?;
        }
        self.programs.push(compiled);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0].program
    }

    fn clear(&mut self) -> Result<(), BackendError> {
        self.context.enter()?;
        self.programs.clear();
        self.weights.clear();
        self.held.clear();
        self.last = None;
        self.steps = Steps::new(&self.context)?;
        self.cells = CellTraffic::default();
        self.caches = Caches::new(&self.context, &self.stream, &CacheLayout::default())?;
        self.caches_made += 1;
        self.stream.synchronize("clearing")
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        self.context.enter()?;
        let previous = self.previous_rows(step);
        let (layout, marks) = self.caches.layout_and_marks();
        self.programs[id.0].needs.check(step, Self::hidden_bytes(step, previous), layout, marks);
        self.settle(id)?;
        let program = &self.programs[id.0].program;
        let plan =
            ResultsPlan::of(step, program.chooser().is_some(), |output| program.outputs[output].operand);
        let ticket = self.steps.next_ticket();
        let mut entry = self.steps.entry(&self.context)?;
        self.write_block(id, step, ticket, &mut entry, (previous, plan.bytes))?;
        self.launch(id, step, &mut entry)?;
        self.last = Some(id);
        let program = &self.programs[id.0].program;
        let output = |output: usize| program.outputs[output].operand;
        self.steps.submit(&self.stream, ticket, entry, step, plan, (&self.buffers.arena, &output))?;
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        self.context.enter()?;
        self.steps.collect(ticket, wait, into)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.context.enter()?;
        self.caches.copy(&self.stream, from, to)
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        self.context.enter()?;
        let ticket = self.steps.next_ticket();
        self.cells.export(&self.context, &self.stream, &self.caches, cell, ticket)?;
        Ok(ticket)
    }

    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        self.context.enter()?;
        self.cells.collect(ticket, wait, into)
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.context.enter()?;
        self.cells.import(&self.context, &self.stream, &self.caches, cell, bytes)
    }

    fn poison_arena(&mut self) -> Result<(), BackendError> {
        self.context.enter()?;
        // All ones is a NaN in every float format.
        self.buffers.arena.fill(&self.stream, 0xff)
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
