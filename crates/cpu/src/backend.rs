//! The CPU as a [`Backend`]: owns the team, weights, caches, arena and compiled programs.

use std::collections::HashMap;
use std::ops::Range;

use mambo_kernel::{
    Backend, BackendError, CacheLayout, Call, CallTime, Elem, KernelRow, Place, Program, ProgramId,
    StepInputs, WeightKey, WeightSource, ops,
};

use crate::bandwidth;
use crate::cache::Caches;
use crate::check::check_program;
use crate::isa::Isa;
use crate::joined::roundings;
use crate::kernels::table::{self, Ports, Weight};
use crate::memory::Buffer;
use crate::run::{Compiled, Resources, ScratchPool};
use crate::team::{Barrier, Team};
use crate::thread_count::CallCosts;
use crate::weights;

/// How to set the backend up.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads of the team; 0 takes as many as there are cores.
    pub threads: usize,
    /// Instruction set; `None` takes the best one.
    pub isa: Option<Isa>,
    /// Whether there are as many threads as were asked for, all in every step, and not only as many as there are
    /// cores and as a step is worth: for tests.
    pub every_thread: bool,
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

/// The CPU backend.
pub struct CpuBackend {
    name: String,
    isa: Isa,
    rows: Vec<KernelRow>,
    team: Team,
    barrier: Barrier,
    scratch: ScratchPool,
    weights: HashMap<WeightKey, Weight>,
    weight_bytes: usize,
    caches: Caches,
    arena: Buffer<u8>,
    programs: Vec<Compiled>,
    profiling: bool,
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
        Ok(CpuBackend {
            name: format!("cpu/{isa} x{threads}"),
            isa,
            rows: table::rows(isa),
            barrier: team.barrier(),
            team,
            scratch: ScratchPool::new()?,
            weights: HashMap::new(),
            weight_bytes: 0,
            caches: Caches::empty()?,
            arena: Buffer::zeroed(0, "arena")?,
            programs: Vec::new(),
            profiling: false,
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
        bandwidth::read_bandwidth(&mut self.team, bytes)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn kernels(&self) -> &[KernelRow] {
        &self.rows
    }

    fn load_weight(
        &mut self,
        key: &WeightKey,
        _kernel: usize,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        if self.weights.contains_key(key) {
            return Ok(());
        }
        let (weight, bytes) = weights::load(&mut self.team, &self.name, key, source)?;
        self.weights.insert(key.clone(), weight);
        self.weight_bytes += bytes;
        Ok(())
    }

    fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    fn held_bytes(&self, key: &WeightKey) -> Option<u64> {
        match self.weights.get(key)? {
            Weight::Packed(packed) => Some(packed.bytes() as u64),
            Weight::Table(_) | Weight::Vector(_) => None,
        }
    }

    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError> {
        self.caches = Caches::new(layout)?;
        Ok(())
    }

    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError> {
        check_program(&program, &self.rows);
        let mut vocabulary = usize::MAX;
        let mut kernels = Vec::with_capacity(program.calls.len());
        let roundings = roundings(&program);
        for (i, call) in program.calls.iter().enumerate() {
            if i > 0 && roundings[i - 1].is_some() {
                kernels.push(None);
                continue;
            }
            let mut ports = Ports { names: Vec::new(), weights: Vec::new() };
            for &index in &call.weights {
                let key = &program.weights[index];
                let weight = self.weights.get(key).ok_or_else(|| BackendError::MissingWeight {
                    program: program.name.clone(),
                    name: key.name.clone(),
                })?;
                if let Weight::Table(table) = weight {
                    vocabulary = vocabulary.min(table.rows);
                }
                ports.names.push(&key.name);
                ports.weights.push(weight.clone());
            }
            kernels.push(Some(table::prepare(self.isa, call, roundings[i], &ports)?));
        }
        if program.arena_bytes > self.arena.len() {
            self.arena = Buffer::zeroed(program.arena_bytes, "activations")?;
        }
        let bytes = |call: &Call| {
            let held = call.weights.iter().map(|&index| self.held_bytes(&program.weights[index]));
            held.flatten().sum::<u64>() as usize
        };
        let costs = (!self.every_thread).then(|| CallCosts::of(&program, bytes));
        let compiled = Compiled::new(program, kernels, &roundings, vocabulary, costs);
        self.scratch.grow(self.team.size(), compiled.scratch())?;
        self.programs.push(compiled);
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0].program
    }

    fn run(&mut self, id: ProgramId, step: &StepInputs) -> Result<(), BackendError> {
        let resources = Resources {
            team: &mut self.team,
            barrier: &self.barrier,
            scratch: &mut self.scratch,
            arena: &mut self.arena,
            caches: &mut self.caches,
            profiling: self.profiling,
        };
        self.programs[id.0].run(resources, step);
        Ok(())
    }

    fn read_output(&mut self, id: ProgramId, output: usize, rows: Range<usize>, into: &mut Vec<f32>) {
        let operand = self.programs[id.0].program.outputs[output].operand;
        let Place::Arena(offset) = operand.place else { unreachable!("outputs live in the arena") };
        for row in rows {
            let bytes = &self.arena[offset + row * operand.stride_bytes..];
            match operand.elem {
                Elem::F32 => into.extend_from_slice(bytemuck::cast_slice(&bytes[..operand.cols * 4])),
                Elem::I32 => {
                    let words: &[i32] = bytemuck::cast_slice(&bytes[..operand.cols * 4]);
                    into.extend(words.iter().map(|word| *word as f32));
                }
                from => into.extend(ops::quantize::decode(bytes, from, operand.cols)),
            }
        }
    }

    fn snapshot_slot(&self, slot: usize) -> Vec<f32> {
        self.caches.snapshot_slot(slot)
    }

    fn restore_slot(&mut self, slot: usize, snapshot: &[f32]) -> Result<(), BackendError> {
        self.caches.restore_slot(slot, snapshot)
    }

    fn snapshot_page(&self, page: usize) -> Vec<u8> {
        self.caches.snapshot_page(page)
    }

    fn restore_page(&mut self, page: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.caches.restore_page(page, bytes)
    }

    fn poison_arena(&mut self) {
        // All ones is a NaN in every float format.
        self.arena.fill(0xff);
    }

    fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        if on {
            for program in &mut self.programs {
                program.times.fill(CallTime::default());
            }
        }
    }

    fn call_times(&self, id: ProgramId) -> Vec<CallTime> {
        self.programs[id.0].times.clone()
    }
}
