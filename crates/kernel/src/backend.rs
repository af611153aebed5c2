//! The interface to a backend: kernel rows to choose from, weights to load, steps to submit and collect.

use std::borrow::Cow;
use std::time::Duration;

use mambo_tensor::DType;

use crate::cache::CacheLayout;
use crate::cache_elem::{KvTypes, StateElem};
use crate::cell::Cell;
use crate::maybe_send::MaybeSend;
use crate::op::{Op, OpKind};
use crate::program::{Phase, Program, WeightKey};
use crate::step::{StepInputs, StepResults};
use crate::value::{Elem, ValueType};

/// What went wrong in a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A weight's element type has no kernel.
    #[error(
        "weight `{name}` has element type {dtype}, for which {backend} has no kernel; convert it to one of {supported}"
    )]
    UnsupportedWeight {
        /// Canonical weight name.
        name: String,
        /// Its element type.
        dtype: DType,
        /// The backend's name.
        backend: String,
        /// What would work.
        supported: String,
    },
    /// A weight's shape cannot be packed.
    #[error("weight `{name}` has shape {shape}, {problem}")]
    WeightShape {
        /// Canonical weight name.
        name: String,
        /// Its shape.
        shape: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A weight's bytes cannot be read.
    #[error("cannot read weight `{name}`: {source}")]
    ReadWeight {
        /// Canonical weight name.
        name: String,
        /// Why not.
        source: WeightError,
    },
    /// A program names a weight that was not loaded.
    #[error("program `{program}` needs weight `{name}`, which was not loaded")]
    MissingWeight {
        /// The program's name.
        program: String,
        /// Canonical weight name.
        name: String,
    },
    /// Memory ran out.
    #[error(
        "cannot allocate {bytes} bytes for {what}; use fewer sequences, a shorter context or a smaller model"
    )]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// Bytes that are not those of a cell of these caches.
    #[error("{got} bytes do not fill {cell}, which takes {want}")]
    CellSize {
        /// What was to be filled.
        cell: Cell,
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        want: usize,
    },
    /// The device or its driver failed; what was in flight is lost, the next call may succeed.
    #[error("{backend} failed in {what}: {reason}")]
    Device {
        /// The backend's name.
        backend: String,
        /// What it was doing.
        what: String,
        /// What the device or the driver said.
        reason: String,
    },
    /// The device is gone with everything it held; no later call succeeds.
    #[error("{backend} is lost ({reason}); load the model again")]
    Lost {
        /// The backend's name.
        backend: String,
        /// What the device or the driver said.
        reason: String,
    },
}

/// Element types of the caches a program runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTypes {
    /// Of keys and values.
    pub kv: KvTypes,
    /// Of recurrent states.
    pub state: StateElem,
}

/// A place in a graph that wants a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The op with its parameters.
    pub op: &'a Op,
    /// What the program is for.
    pub phase: Phase,
    /// Types of the inputs, in port order, as the graph has them.
    pub inputs: &'a [ValueType],
    /// Element types of the weights, in port order.
    pub weight_types: &'a [DType],
    /// Element types of the caches.
    pub caches: CacheTypes,
}

impl Site<'_> {
    /// Columns of the first input.
    pub fn input_cols(&self) -> usize {
        self.inputs.first().map_or(0, |input| input.cols)
    }
}

/// How a kernel computes, which decides how far it may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Integer products with exact sums inside a block; only scales and sums over blocks round, in f32.
    Integer,
    /// f32 throughout.
    F32,
    /// Products of bf16 values summed in f32 by a matrix unit, whose order and intermediate rounding are its own.
    Bf16InF32,
    /// Products of f16 values summed in f32 by a matrix unit; every weight is an f16.
    F16InF32,
    /// The same, where a weight's scale and its product with a code are each rounded to f16, or a softmax's weights are.
    RoundedF16InF32,
    /// The same, where offsets are rounded too, or the weights of a type without a form of its own.
    OffsetF16InF32,
}

impl Arithmetic {
    /// What a case's tolerance, which is that of f32 sums, is multiplied with.
    pub fn tolerance_factor(self) -> f32 {
        match self {
            Arithmetic::Integer | Arithmetic::F32 => 1.0,
            // Matrix units may truncate where f32 rounds, which loses up to twice as much, and align the terms of
            // a sum to the largest of a group, which loses as much again.
            Arithmetic::Bf16InF32 | Arithmetic::F16InF32 => 4.0,
            // Two roundings to eleven digits are up to 4.9e-4 of a weight. In a sum they have both signs, which leaves
            // up to 7e-4 of the largest output, and a square doubles it; tolerances of products are 1e-5.
            Arithmetic::RoundedF16InF32 => 160.0,
            // An offset is up to eight times as large as the weights it makes, and all of a group share its error, as
            // all values of a rare type share that of a few large groups: 3.6e-3 of the largest output was seen.
            Arithmetic::OffsetF16InF32 => 512.0,
        }
    }
}

/// A question about a site.
pub type Accepts = Box<dyn Fn(&Site) -> bool + Send + Sync>;
/// A question about a site and a private type.
pub type Rounds = Box<dyn Fn(&Site, Elem) -> bool + Send + Sync>;

/// One kernel a backend offers.
pub struct KernelRow {
    /// `backend:op.variant.types`, such as `cpu:matmul.avx512.q4_0`.
    pub name: String,
    /// The op it computes.
    pub op: OpKind,
    /// Element type it reads each input in; lowering converts where the graph has another.
    pub inputs: Vec<Elem>,
    /// How it computes.
    pub arithmetic: Arithmetic,
    /// The form it reads its weights in. A weight that kernels read in several forms is held once in each.
    pub weight_form: &'static str,
    /// Whether it can serve this site. The first row that accepts is taken, so rows stand best first.
    pub accepts: Accepts,
    /// Whether at this site it can write its first output a second time, in a private type.
    pub rounds: Rounds,
}

impl KernelRow {
    /// A row that takes its inputs as the op defines them, serves every site and rounds nothing.
    pub fn new(name: String, op: OpKind) -> Self {
        KernelRow {
            name,
            op,
            inputs: op.input_elems().to_vec(),
            arithmetic: Arithmetic::F32,
            weight_form: "f32",
            accepts: Box::new(|_| true),
            rounds: Box::new(|_, _| false),
        }
    }

    /// The same, where it serves some sites only.
    pub fn accepting(mut self, accepts: impl Fn(&Site) -> bool + Send + Sync + 'static) -> Self {
        self.accepts = Box::new(accepts);
        self
    }

    /// The same, where it reads its first input in this type.
    pub fn reading(mut self, first: Elem) -> Self {
        self.inputs[0] = first;
        self
    }

    /// The same, where it computes in another way than f32.
    pub fn computing(mut self, arithmetic: Arithmetic) -> Self {
        self.arithmetic = arithmetic;
        self
    }

    /// The same, where it reads its weights in another form than f32.
    pub fn holding(mut self, weight_form: &'static str) -> Self {
        self.weight_form = weight_form;
        self
    }

    /// The same, where it can round its first output as it writes it.
    pub fn rounding(mut self, rounds: impl Fn(&Site, Elem) -> bool + Send + Sync + 'static) -> Self {
        self.rounds = Box::new(rounds);
        self
    }
}

/// One part of a weight, read.
#[derive(Clone, Debug)]
pub struct WeightPart<'a> {
    /// Its bytes, borrowed from the mapped file wherever they need no change.
    pub bytes: Cow<'a, [u8]>,
    /// Factors on the values of its rows: none where all are 1, one for all rows, or one for each row.
    pub row_scales: Cow<'a, [f32]>,
}

impl<'a> WeightPart<'a> {
    /// A part whose values have no factors.
    pub fn plain(bytes: &'a [u8]) -> Self {
        WeightPart { bytes: Cow::Borrowed(bytes), row_scales: Cow::Borrowed(&[]) }
    }

    /// Factor on the values of a row.
    pub fn row_scale(&self, row: usize) -> f32 {
        match *self.row_scales {
            [] => 1.0,
            [scale] => scale,
            ref scales => scales[row],
        }
    }
}

/// Why a weight cannot be read; names the file, the tensor and the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct WeightError(pub String);

/// Where a weight's bytes come from: parts that stack along the outermost dimension.
pub trait WeightSource {
    /// Element type of every part.
    fn dtype(&self) -> DType;
    /// Shape of the whole, outermost first.
    fn shape(&self) -> &[usize];
    /// How many parts there are.
    fn part_count(&self) -> usize;
    /// Reads one part.
    fn part(&self, index: usize) -> Result<WeightPart<'_>, WeightError>;
    /// Releases a part that was consumed; its mapped pages may be dropped.
    fn release(&self, index: usize);
    /// A hash of some of the stored bytes: cheap, and enough to tell apart two models of one shape.
    fn digest(&self) -> u64;
}

/// Handle of a compiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId(pub usize);

/// Handle of a submitted step, or of a cell that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Whether collecting may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the step has ended.
    Block,
    /// Not at all: a browser must not block, and a server has other work.
    Poll,
}

/// Memory that may be used, in bytes; none where the backend does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Memory of the host.
    pub host: Option<u64>,
    /// Memory of the device, where it is separate from the host's.
    pub device: Option<u64>,
}

/// How long one call of a program took.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTime {
    /// Total over the profiled runs.
    pub total: Duration,
    /// Profiled runs.
    pub runs: u32,
}

/// A device that runs programs. It owns weights, caches and arena; which sequence holds which page or slot is up to
/// the engine. Calls take effect in the order they are made, even if the device executes them later.
pub trait Backend: MaybeSend {
    /// `cpu`, `cuda`, ... with what it runs on, such as `cpu/avx512 x2`.
    fn name(&self) -> &str;
    /// The available kernels, best first within an op.
    fn kernels(&self) -> &[KernelRow];
    /// Memory that is free now.
    fn memory(&self) -> Result<MemoryBudget, BackendError>;
    /// Steps that may be submitted before the first is collected; more than one only helps a device that runs
    /// asynchronously. A step that reads rows of the one before it
    /// ([`HiddenRows::Previous`](crate::HiddenRows::Previous)) counts with that one.
    fn queue_depth(&self) -> usize {
        1
    }
    /// Whether [`Wait::Block`] waits. In a browser nothing may wait for a device, and whoever asked for a wait would ask
    /// forever.
    fn may_block(&self) -> bool {
        true
    }
    /// Leaves so many of the host's cores that it would use to others, from the next step on. No result changes by it.
    fn leave_cores(&mut self, _cores: usize) {}

    /// Loads a weight in the form that its key names. Loading a key twice has no effect.
    fn load_weight(&mut self, key: &WeightKey, source: &dyn WeightSource) -> Result<(), BackendError>;
    /// Bytes the loaded weights take in the backend's own memory.
    fn weight_bytes(&self) -> u64;
    /// Bytes of one of them, where the backend keeps it in another form than the file.
    fn held_bytes(&self, _key: &WeightKey) -> Option<u64> {
        None
    }
    /// Allocates KV pages and recurrent slots, replacing any earlier ones.
    fn create_caches(&mut self, layout: &CacheLayout) -> Result<(), BackendError>;
    /// Checks and keeps a program; grows the arena to its size.
    fn compile(&mut self, program: Program) -> Result<ProgramId, BackendError>;
    /// The program behind a handle.
    fn program(&self, id: ProgramId) -> &Program;
    /// Drops all programs, weights and caches; the device stays open.
    fn clear(&mut self) -> Result<(), BackendError>;

    /// Queues one step. At most [`Backend::queue_depth`] are submitted and not collected.
    fn submit(&mut self, id: ProgramId, step: &StepInputs) -> Result<Ticket, BackendError>;
    /// Fetches the results of a step if it has ended, and returns whether it has. Steps may be collected in any order,
    /// each once; after an error the step counts as collected and its caches as half-written.
    fn collect(&mut self, ticket: Ticket, wait: Wait, into: &mut StepResults) -> Result<bool, BackendError>;

    /// Copies a page to a page, or a slot at a position to another slot, on the device.
    fn copy_cell(&mut self, from: Cell, to: Cell) -> Result<(), BackendError>;
    /// Queues reading a cell.
    fn export_cell(&mut self, cell: Cell) -> Result<Ticket, BackendError>;
    /// Appends the bytes of such a cell in the contract's layout (see [`Cell`]) if they have arrived, and returns
    /// whether they have. Each is collected once, in any order.
    fn collect_cell(&mut self, ticket: Ticket, wait: Wait, into: &mut Vec<u8>) -> Result<bool, BackendError>;
    /// Reads a cell and blocks until its bytes have arrived.
    fn read_cell(&mut self, cell: Cell, into: &mut Vec<u8>) -> Result<(), BackendError> {
        let ticket = self.export_cell(cell)?;
        while !self.collect_cell(ticket, Wait::Block, into)? {}
        Ok(())
    }
    /// Fills a cell from such bytes.
    fn import_cell(&mut self, cell: Cell, bytes: &[u8]) -> Result<(), BackendError>;

    /// Fills the arena with NaN, so that a kernel which leaves an output unwritten shows.
    fn poison_arena(&mut self) -> Result<(), BackendError>;
    /// Starts or stops timing every call.
    fn set_profiling(&mut self, on: bool) -> Result<(), BackendError>;
    /// Times per call of a program since profiling was switched on.
    fn call_times(&self, id: ProgramId) -> Result<Vec<CallTime>, BackendError>;
}
