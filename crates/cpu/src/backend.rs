//! The CPU as a [`Backend`]: owns the team, weights, caches, arena and compiled programs.

use std::collections::HashMap;
use std::time::Duration;

use mambo_kernel::check::check_program;
use mambo_kernel::{
    Backend, BackendError, CacheLayout, CacheTypes, Call, CallTime, CallWork, Cell, Elem, HiddenRows,
    KernelRow, MemoryBudget, Operand, Place, Program, ProgramId, StepInputs, StepResults, Ticket, Wait,
    WeightKey, WeightSource,
};

use crate::cache::Caches;
use crate::clock::Clock;
use crate::isa::Isa;
use crate::kernels::declaration::{Bind, Binding, Declaration, Weight};
use crate::kernels::declarations;
use crate::memory::Buffer;
use crate::run::{Compiled, Resources, ScratchPool};
use crate::steps::Steps;
use crate::team::{Barrier, Team};
use crate::thread_count::SerialCosts;
use crate::{bandwidth, host_memory, weights};

/// How to set the backend up.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads of the team; 0 takes as many as there are cores.
    pub threads: usize,
    /// Instruction set; `None` takes the best one.
    pub isa: Option<Isa>,
    /// Use exactly `threads` threads in every step, even beyond the number of cores or for tiny steps. For tests.
    pub every_thread: bool,
    /// A clock that never goes back, for profiles and to find the best number of threads; by default the system's.
    /// Browsers need one.
    pub clock: Option<fn() -> Duration>,
}

/// Why a backend could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The CPU lacks an instruction set that was asked for.
    #[error("this CPU has no {isa}; it has {available}")]
    MissingIsa {
        /// What was asked for.
        isa: Isa,
        /// What there is.
        available: String,
    },
    /// The system refused a thread.
    #[error("cannot start a team of {threads} threads: {source}")]
    Threads {
        /// How many were wanted.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Memory ran out.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// What the backend knows of a kernel beside its row.
struct KernelFacts {
    bind: Bind,
    may_run_alone: bool,
    flops: f64,
}

/// The CPU backend.
pub struct CpuBackend {
    name: String,
    isa: Isa,
    rows: Vec<KernelRow>,
    /// By row.
    facts: Vec<KernelFacts>,
    team: Team,
    barrier: Barrier,
    scratch: ScratchPool,
    weights: HashMap<WeightKey, Weight>,
    weight_bytes: u64,
    caches: Caches,
    arena: Buffer<u8>,
    programs: Vec<Compiled>,
    steps: Steps,
    clock: Clock,
    profiling: bool,
    /// Threads of the team that steps do without.
    left_cores: usize,
    every_thread: bool,
}

impl CpuBackend {
    /// Starts the team.
    pub fn new(options: CpuOptions) -> Result<CpuBackend, CpuError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let available = Isa::available();
        if !available.contains(&isa) {
            let available = available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
            return Err(CpuError::MissingIsa { isa, available });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match options.threads {
            0 => cores,
            n if options.every_thread => n,
            // More than cores would wait for each other.
            n => n.min(cores),
        };
        let team = Team::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        let (mut rows, mut facts) = (Vec::new(), Vec::new());
        for Declaration { row, bind, may_run_alone, flops } in declarations(isa) {
            rows.push(row);
            facts.push(KernelFacts { bind, may_run_alone, flops });
        }
        Ok(CpuBackend {
            name: format!("cpu/{isa} x{threads}"),
            isa,
            rows,
            facts,
            barrier: team.barrier(),
            team,
            scratch: ScratchPool::new()?,
            weights: HashMap::new(),
            weight_bytes: 0,
            caches: Caches::empty()?,
            arena: Buffer::zeroed(0, "arena")?,
            programs: Vec::new(),
            steps: Steps::default(),
            clock: Clock::new(options.clock),
            profiling: false,
            left_cores: 0,
            every_thread: options.every_thread,
        })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.team.size()
    }

    /// GB/s at which the team reads `bytes` of memory in a plain loop: the floor under everything that
    /// streams weights.
    pub fn read_bandwidth(&mut self, bytes: usize) -> Result<f64, BackendError> {
        bandwidth::read_bandwidth(&mut self.team, self.clock, bytes)
    }
}

impl CpuBackend {
    /// Binds a call to its kernel; the smallest table it looks tokens up in counts for `vocabulary`.
    fn bind(
        &self,
        program: &Program,
        call: &Call,
        vocabulary: &mut usize,
    ) -> Result<Box<dyn crate::kernels::Kernel>, BackendError> {
        let mut binding = Binding { isa: self.isa, call, names: Vec::new(), weights: Vec::new() };
        for &index in &call.weights {
            let key = &program.weights[index];
            let weight = self.weights.get(key).ok_or_else(|| BackendError::MissingWeight {
                program: program.name.clone(),
                name: key.name.clone(),
            })?;
            if let Weight::Table(table) = weight {
                *vocabulary = (*vocabulary).min(table.rows);
            }
            binding.names.push(&key.name);
            binding.weights.push(weight.clone());
        }
        (self.facts[call.kernel].bind)(&binding)
    }

    /// Work and speed of every call, for the number of threads.
    fn serial_costs(&self, program: &Program) -> SerialCosts {
        let layout = self.caches.layout();
        let types = CacheTypes { kv: layout.kv_types, state: layout.state_elem };
        let cost = |call: &Call| {
            let held = call.weights.iter().map(|&index| self.held_bytes(&program.weights[index]));
            let work = CallWork::of(call, held.flatten().sum(), types);
            (work, self.facts[call.kernel].flops)
        };
        SerialCosts::new(program.calls.iter().map(cost).collect())
    }

    /// Appends rows of an operand of the program that ran last, as values.
    fn read_rows(&self, operand: &Operand, rows: impl Iterator<Item = usize>, into: &mut Vec<f32>) {
        let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
        for row in rows {
            let bytes = &self.arena[offset + row * operand.stride_bytes..];
            let bytes = &bytes[..operand.elem.packed_bytes(operand.cols)];
            match operand.elem {
                Elem::F32 => into.extend_from_slice(bytemuck::cast_slice(bytes)),
                Elem::I32 => {
                    let words: &[i32] = bytemuck::cast_slice(bytes);
                    into.extend(words.iter().map(|word| *word as f32));
                }
                Elem::Private(elem) => into.extend((elem.decode)(bytes, operand.cols)),
            }
        }
    }

    /// Fetches what a step that has just run was asked for.
    fn gather(&mut self, id: ProgramId, step: &StepInputs) -> StepResults {
        let mut results = self.steps.empty_results(step.fetch.len());
        let program = &self.programs[id.0].program;
        if let Some(chooser) = program.chooser() {
            let (operand, Place::Arena(offset)) = (chooser.outputs[0], chooser.outputs[0].place) else {
                unreachable!("outputs live in the arena")
            };
            let token = |row: usize| {
                let at = offset + row * operand.stride_bytes;
                u32::from_le_bytes(self.arena[at..at + 4].try_into().expect("four bytes"))
            };
            results.tokens.extend((0..step.wanted.len()).map(token));
        }
        for (fetch, into) in step.fetch.iter().zip(&mut results.rows) {
            let rows = fetch.rows.start as usize..fetch.rows.end as usize;
            self.read_rows(&program.outputs[fetch.output].operand, rows, into);
        }
        results
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.rows
    }

    fn memory(&self) -> Result<MemoryBudget, BackendError> {
        Ok(MemoryBudget { host: host_memory::available(), device: None })
    }

    fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError> {
        if self.weights.contains_key(key) {
            return Ok(());
        }
        let (weight, bytes) = weights::load(&mut self.team, &self.name, key, source)?;
        self.weights.insert(key.clone(), weight);
        self.weight_bytes += bytes as u64;
        Ok(())
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn held_bytes(&self, key: &WeightKey) -> Option<u64> {
        match self.weights.get(key)? {
            Weight::Packed(packed) => Some(packed.bytes() as u64),
            Weight::Table(_) | Weight::Vector(_) => None,
        }
    }

    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
        self.caches = Caches::empty()?;
        self.caches = Caches::new(layout)?;
        Ok(())
    }

    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
        check_program(&program, &self.rows);
        let mut vocabulary = usize::MAX;
        let kernels = program.calls.iter().map(|call| self.bind(&program, call, &mut vocabulary));
        let kernels = kernels.collect::<Result<Vec<_>, _>>()?;
        let alone = program.calls.iter().map(|call| self.facts[call.kernel].may_run_alone).collect();
        if program.arena_bytes > self.arena.len() {
            self.arena = Buffer::zeroed(program.arena_bytes, "activations")?;
        }
        let costs = (!self.every_thread).then(|| self.serial_costs(&program));
        let compiled = Compiled::new(program, kernels, alone, vocabulary, costs);
        self.scratch.grow(self.team.size(), compiled.scratch())?;
        self.programs.push(compiled);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0].program
    }

    fn clear(&mut self) -> Result<(), BackendError> {
        self.programs.clear();
        self.weights.clear();
        self.weight_bytes = 0;
        self.steps = Steps::default();
        self.caches = Caches::empty()?;
        Ok(())
    }

    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError> {
        let mut token_ids = std::mem::take(&mut self.steps.token_ids);
        step.resolve_tokens(self.steps.chosen_by(step.chosen_by), &mut token_ids);
        let mut previous = std::mem::take(&mut self.steps.hidden);
        let hidden = match step.hidden {
            HiddenRows::None => &[],
            HiddenRows::Given(rows) => rows,
            HiddenRows::Previous { output, rows } => {
                let last = self.steps.last.expect("a step was submitted before");
                let operand = self.programs[last.0].program.outputs[output].operand;
                previous.clear();
                self.read_rows(&operand, rows.iter().map(|row| *row as usize), &mut previous);
                &previous
            }
        };
        let resolved = StepInputs {
            token_ids: if token_ids.is_empty() { step.token_ids } else { &token_ids },
            hidden: HiddenRows::Given(hidden),
            ..*step
        };
        let resources = Resources {
            team: &mut self.team,
            barrier: &self.barrier,
            scratch: &mut self.scratch,
            arena: &mut self.arena,
            caches: &mut self.caches,
            clock: self.clock,
            profiling: self.profiling,
            left_cores: self.left_cores,
        };
        self.programs[id.0].run(resources, &resolved);
        (self.steps.token_ids, self.steps.hidden) = (token_ids, previous);
        self.steps.last = Some(id);
        let results = self.gather(id, step);
        Ok(self.steps.keep(results))
    }

    fn collect(&mut self, ticket: Ticket, _: Wait, into: &mut StepResults) -> Result<bool, BackendError> {
        self.steps.collect(ticket, into);
        Ok(true)
    }

    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError> {
        self.caches.copy(from, to);
        Ok(())
    }

    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError> {
        let mut bytes = Vec::new();
        self.caches.export(cell, &mut bytes);
        Ok(self.steps.keep_cell(bytes))
    }

    fn collect_cell(&mut self, ticket: Ticket, _: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError> {
        self.steps.collect_cell(ticket, into);
        Ok(true)
    }

    /// Straight into the caller's memory: snapshots are taken between steps of running answers.
    fn read_cell(&mut self, cell: Cell, into: &mut Vec<u8>) -> Result<(), BackendError> {
        self.caches.export(cell, into);
        Ok(())
    }

    fn leave_cores(&mut self, cores: usize) {
        self.left_cores = cores;
    }

    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError> {
        self.caches.import(cell, bytes)
    }

    fn poison_arena(&mut self) -> Result<(), BackendError> {
        // All ones is a NaN in every float format.
        self.arena.fill(0xff);
        Ok(())
    }

    fn set_profiling(&mut self, on: bool) -> Result<(), BackendError> {
        self.profiling = on;
        if on {
            for program in &mut self.programs {
                program.times.fill(CallTime::default());
            }
        }
        Ok(())
    }

    fn call_times(&self, id: ProgramId) -> Result<Vec<CallTime>, BackendError> {
        Ok(self.programs[id.0].times.clone())
    }
}
